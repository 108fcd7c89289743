// The state of a job and of its operators in a word, with a mark and a kind for the style.

import { NONE, percent, UNMEASURED } from "./words.js";

const JOBS = {
  CREATED: ["waits", "◌"], STARTING: ["waits", "◌"], RUNNING: ["good", "▶"], RESTARTING: ["warns", "↻"], STOPPING: ["waits", "■"],
  FINISHING: ["waits", "■"], FINISHED: ["over", "✓"], CANCELLING: ["waits", "■"], CANCELLED: ["over", "⊘"], FAILING: ["bad", "✕"],
  FAILED: ["bad", "✕"],
}; // prettier-ignore

/** The kind and the mark of a job's status. */
export const jobState = (status) => JOBS[status] ?? ["waits", "◌"];

const OVER = new Set(["FINISHED", "CANCELLED", "FAILED"]);

/** True for a job that has ended. */
export const isOver = (status) => OVER.has(status);

export const KINDS = [
  ["busy", "●", "busy"],
  ["backpressured", "■", "back-pressured"],
  ["waiting", "○", "waiting"],
  ["finished", "✓", "finished"],
  ["unknown", "?", NONE],
];

/** The state of a chain's worst subtask: most of its time busy, back-pressured or waiting. */
export function operatorState(figures, parallelism) {
  if (!figures || !figures.subtasks_reporting) return { kind: "unknown", mark: "?", text: NONE, shares: null };
  if (figures.subtasks_finished >= parallelism) return { kind: "finished", mark: "✓", text: "finished", shares: null };
  const { busy, waiting, backpressured } = figures;
  if (!busy) return { kind: "unknown", mark: "?", text: UNMEASURED, shares: null };
  const shares = { busy: busy.worst, backpressured: backpressured?.worst ?? 0, waiting: waiting?.worst ?? 0 };
  if (shares.backpressured >= 0.5 && shares.backpressured >= shares.busy) {
    return { kind: "backpressured", mark: "■", text: `back-pressured ${percent(shares.backpressured)}`, shares };
  }
  if (shares.busy >= 0.5) return { kind: "busy", mark: "●", text: `busy ${percent(shares.busy)}`, shares };
  return { kind: "waiting", mark: "○", text: `waiting, busy ${percent(shares.busy)}`, shares };
}

/** The chains of a graph: operators that run in one step. */
export function chainsOf(graph) {
  const found = new Map();
  for (const one of graph.operators) {
    const chain = found.get(one.chain) ?? { id: String(one.chain), operators: [], parallelism: one.parallelism, scope: one.scope };
    chain.operators.push(one);
    found.set(one.chain, chain);
  }
  return [...found.values()];
}

/** The names that a sentence has in backticks. */
export function namesIn(sentence) {
  return new Set([...sentence.matchAll(/`([^`]+)`/g)].flatMap((found) => found[1].split(" → ")));
}
