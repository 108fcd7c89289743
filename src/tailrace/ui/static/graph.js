// The graph of a job: laid out once by ELK in a worker, drawn as SVG, and colored anew with each snapshot.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Chip } from "./parts.js";
import { chainsOf, KINDS, namesIn, operatorState } from "./states.js";
import { count, many, rate } from "./words.js";

const ROW = 20;
const TOP = 46;
const PAD = 10;
const LONGEST = 34;
export const ASK = 150;
const SMALLEST = 0.65; // a wide graph is scaled down so far; then it scrolls

const cut = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);

/** The text of a graph: equal for equal graphs, which are laid out once. */
const signature = (graph) => JSON.stringify([graph.operators.map((one) => [one.uid, one.name, one.chain, one.scope]), graph.edges, graph.scopes]);

function sizeOf(chain) {
  const longest = Math.max(...chain.operators.map((one) => cut(one.name).length));
  return { width: Math.max(216, 2 * PAD + 7.2 * longest + 74), height: TOP + ROW * chain.operators.length + 6 };
}

/** The graph as ELK takes it: chains in the boxes of their loops. */
export function elkGraph(graph, direction) {
  const options = { "org.eclipse.elk.padding": "[top=30,left=16,bottom=20,right=16]" };
  const boxes = new Map([["", { id: "root", children: [], edges: [] }]]);
  for (const one of graph.scopes) if (one.id) boxes.set(one.id, { id: `s${one.id}`, children: [], layoutOptions: options });
  for (const one of graph.scopes) if (one.id) boxes.get(one.parent ?? "").children.push(boxes.get(one.id));
  const chains = chainsOf(graph);
  const chainOf = new Map(chains.flatMap((chain) => chain.operators.map((one) => [one.uid, chain.id])));
  const [entry, exit] = direction === "DOWN" ? ["NORTH", "SOUTH"] : ["WEST", "EAST"];
  const port = (id, side) => ({ id, width: 0, height: 0, layoutOptions: { "elk.port.side": side } });
  for (const chain of chains) {
    const id = `c${chain.id}`;
    const ports = [port(`${id}i`, entry), port(`${id}o`, exit), port(`${id}fi`, entry), port(`${id}fo`, exit)];
    boxes.get(chain.scope).children.push({ id, ...sizeOf(chain), ports, layoutOptions: { "elk.portConstraints": "FIXED_SIDE" } });
  }
  const root = boxes.get("");
  root.layoutOptions = {
    "elk.algorithm": "layered",
    "elk.direction": direction,
    "elk.hierarchyHandling": "INCLUDE_CHILDREN",
    "elk.edgeRouting": "ORTHOGONAL",
    "elk.layered.feedbackEdges": "true",
    "elk.layered.spacing.nodeNodeBetweenLayers": "44",
    "elk.spacing.nodeNode": "22",
    "elk.spacing.edgeNode": "16",
    "elk.json.shapeCoords": "ROOT",
    "elk.json.edgeCoords": "ROOT",
    "elk.padding": "[top=4,left=4,bottom=4,right=4]",
  };
  graph.edges.forEach((edge, number) => {
    const [source, target] = [chainOf.get(edge.from), chainOf.get(edge.to)];
    if (source === target && !edge.feedback) return;
    const priority = { "elk.layered.priority.direction": edge.feedback ? "0" : "10" };
    root.edges.push({ id: `e${number}`, sources: [`c${source}${edge.feedback ? "fo" : "o"}`], targets: [`c${target}${edge.feedback ? "fi" : "i"}`], layoutOptions: priority });
  });
  return root;
}

/** Places of boxes and edges, from what ELK returns. */
function placesOf(root, graph) {
  const places = { width: root.width, height: root.height, boxes: {}, scopes: {}, links: graph.edges.map(() => []) };
  const visit = (node) => {
    for (const child of node.children ?? []) {
      (child.id[0] === "c" ? places.boxes : places.scopes)[child.id.slice(1)] = [child.x, child.y, child.width, child.height];
      visit(child);
    }
    for (const edge of node.edges ?? []) {
      const [section] = edge.sections ?? [];
      if (section) places.links[Number(edge.id.slice(1))] = [section.startPoint, ...(section.bendPoints ?? []), section.endPoint].map((p) => [p.x, p.y]);
    }
  };
  visit(root);
  return places;
}

let elk = null;

/** The places of a graph. A static export has them already. */
async function layOut(graph, direction) {
  const held = document.getElementById("tailrace-places");
  if (held !== null) return JSON.parse(held.textContent);
  elk ??= new window.ELK({ workerUrl: new URL("./vendor/elk-worker-0.12.1.min.js", import.meta.url).href });
  return placesOf(await elk.layout(elkGraph(graph, direction)), graph);
}

function useLayout(graph, drawn) {
  const key = signature(graph);
  const [found, set] = useState({ key: null, places: null, error: null });
  const direction = window.innerWidth < 700 ? "DOWN" : "RIGHT";
  useEffect(() => {
    if (!drawn) return undefined;
    let current = true;
    const started = performance.now();
    layOut(graph, direction).then(
      (places) => current && set({ key, places, error: null, took: performance.now() - started }),
      (error) => current && set({ key, places: null, error: String(error?.message ?? error) }),
    );
    return () => (current = false);
  }, [key, drawn]);
  return found.key === key ? found : { places: null, error: null };
}

const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** The middle of the longest part of a path: the place for its text. */
function middle(points) {
  let best = [0, points[0][0], points[0][1]];
  points.slice(1).forEach(([x, y], place) => {
    const [before, height] = points[place];
    const length = Math.abs(x - before) + Math.abs(y - height);
    if (length > best[0]) best = [length, (x + before) / 2, (y + height) / 2];
  });
  return best.slice(1);
}

function Edge({ edge, points, source, target, pressed }) {
  if (!points.length) return null;
  const kind = edge.feedback ? "edge feedback" : pressed ? "edge pressed" : "edge";
  const [x, y] = middle(points);
  const text = `${source} → ${target}: ${edge.feedback ? "feedback" : edge.partitioning}${edge.tag ? `, side output ${edge.tag}` : ""}`;
  return html`<g class=${kind}>
    <path d=${path(points)} marker-end=${`url(#tip${pressed ? "-pressed" : edge.feedback ? "-feedback" : ""})`}><title>${text}${pressed ? ", held up" : ""}</title></path>
    ${edge.feedback && html`<text x=${x} y=${y - 5} text-anchor="middle">feedback</text>`}
  </g>`;
}

function Shares({ shares, x, y, width }) {
  if (!shares) return html`<rect class="track" x=${x} y=${y} width=${width} height="5" />`;
  let left = x;
  const parts = ["busy", "backpressured", "waiting"].map((kind) => {
    const wide = Math.max(0, Math.min(x + width - left, width * shares[kind]));
    left += wide;
    return html`<rect class=${`share ${kind}`} x=${left - wide} y=${y} width=${wide} height="5" />`;
  });
  return html`<rect class="track" x=${x} y=${y} width=${width} height="5" />${parts}`;
}

function ChainBox({ chain, place, snapshot, named, found, select, selected }) {
  const [x, y, width, height] = place;
  const figures = snapshot.operators;
  const state = operatorState(figures[chain.operators[0].uid], chain.parallelism);
  const row = (height - TOP - 6) / chain.operators.length;
  const names = chain.operators.map((one) => one.name).join(", ");
  const flows = chain.operators.map((one) => rate(figures[one.uid]?.rate_in ?? figures[one.uid]?.rate_out, ""));
  const marks = [state.kind, named && "named", found === false && "faint", selected && "selected"].filter(Boolean).join(" ");
  const choose = () => select(chain.operators[0].uid);
  const key = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), choose());
  return html`<g class=${`chain ${marks}`} tabindex="0" role="button" aria-pressed=${selected ? "true" : "false"} onClick=${choose} onKeyDown=${key}>
    <rect class="box" x=${x} y=${y} width=${width} height=${height} rx="6"><title>${names}: ${state.text}, ${many(chain.parallelism, "subtask")}</title></rect>
    <rect class="side" x=${x} y=${y} width="6" height=${height} rx="3" />
    <text class="state" x=${x + 14} y=${y + 18}>${state.mark} ${state.text}</text>
    <text class="times" x=${x + width - PAD} y=${y + 18} text-anchor="end">×${chain.parallelism}</text>
    <${Shares} shares=${state.shares} x=${x + 14} y=${y + 26} width=${width - 14 - PAD} />
    ${chain.operators.map((one, number) => {
      const own = figures[one.uid] ?? {};
      const middle = y + TOP + row * (number + 0.5);
      return html`<text key=${one.uid} class="operator" x=${x + 14} y=${middle}>${cut(one.name)}<title>${one.name}, ${count(own.records_in, "not counted here")} in, ${count(own.records_out, "not counted here")} out</title></text>
        <text class="rate" x=${x + width - PAD} y=${middle} text-anchor="end">${flows[number]}</text>`;
    })}
  </g>`;
}

function Picture({ snapshot, places, search, select, selected }) {
  const graph = snapshot.graph;
  const chains = chainsOf(graph);
  const byUid = new Map(graph.operators.map((one) => [one.uid, one]));
  const stateOf = (uid) => operatorState(snapshot.operators[uid], byUid.get(uid).parallelism).kind;
  const named = namesIn(snapshot.sentence);
  const fits = (chain) => !search || chain.operators.some((one) => one.name.toLowerCase().includes(search) || one.uid.includes(search));
  return html`<svg class="graph" viewBox=${`-4 -4 ${places.width + 8} ${places.height + 8}`} width=${places.width + 8} style=${{ minWidth: `${Math.round(places.width * SMALLEST)}px` }} role="group" aria-label="The graph of the job">
    <defs>
      ${["", "-pressed", "-feedback"].map((kind) => html`<marker id=${`tip${kind}`} class=${`tip${kind}`} viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" /></marker>`)}
    </defs>
    ${graph.scopes.filter((one) => places.scopes[one.id] && one.id).map((one) => {
      const [x, y, width, height] = places.scopes[one.id];
      return html`<g class="loop" key=${one.id}><rect x=${x} y=${y} width=${width} height=${height} rx="10" /><text x=${x + 12} y=${y + 19}>↻ loop ${one.loop}</text></g>`;
    })}
    ${graph.edges.map((edge, number) => html`<${Edge} key=${number} edge=${edge} points=${places.links[number] ?? []} source=${byUid.get(edge.from).name} target=${byUid.get(edge.to).name} pressed=${stateOf(edge.from) === "backpressured"} />`)}
    ${chains.map((chain) => html`<${ChainBox} key=${chain.id} chain=${chain} place=${places.boxes[chain.id]} snapshot=${snapshot} named=${chain.operators.some((one) => named.has(one.name))} found=${fits(chain)} select=${select} selected=${chain.operators.some((one) => one.uid === selected)} />`)}
  </svg>`;
}

/** The legend of marks and colors. */
export function Legend() {
  return html`<p class="legend">
    ${KINDS.map(([kind, mark, text]) => html`<${Chip} kind=${kind} mark=${mark}>${text}<//>`)}
    <span class="muted">each chain by its worst subtask; bars: busy, back-pressured, waiting</span>
  </p>`;
}

/** The panel's graph with its search box; a large one is drawn on request. */
export function Graph({ snapshot, select, selected }) {
  const chains = chainsOf(snapshot.graph).length;
  const [wish, setWish] = useState(false);
  const [search, setSearch] = useState("");
  const drawn = wish || chains <= ASK;
  const { places, error, took } = useLayout(snapshot.graph, drawn);
  const body = !drawn
    ? html`<p class="empty">The graph has ${count(chains)} boxes. <button type="button" onClick=${() => setWish(true)}>Draw it</button></p>`
    : error !== null
      ? html`<p class="empty">The graph cannot be laid out: ${error}. The table of operators has all figures.</p>`
      : places === null
        ? html`<p class="empty">The graph is being laid out …</p>`
        : html`<${Picture} snapshot=${snapshot} places=${places} search=${search.trim().toLowerCase()} select=${select} selected=${selected} />`;
  return html`<div>
    <div class="tools">
      <${Legend} />
      <label>Find <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} placeholder="name or uid" /></label>
    </div>
    <div class="scroll drawing" tabindex="0" role="region" aria-label="Drawing of the graph" data-took=${took}>${body}</div>
  </div>`;
}
