// Buttons that change a job. Each shows first what it will do.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { fragment, order } from "./feed.js";
import { isOver } from "./states.js";

const ORDERS = [
  ["checkpoint", "Checkpoint", "Takes a checkpoint now. The job goes on."],
  ["savepoint", "Savepoint", "Writes a savepoint: a checkpoint that needs no other file, and that stays until you delete it. The job goes on."],
  ["rescale", "Resize", "Gives the job another size, and it goes on where it stands. Operators that the program gave a parallelism of their own keep it."],
  ["stop", "Stop", "Ends the job with a last checkpoint. Sources stop where they are; the job can be started again from there."],
  ["drain", "Drain", "Ends the job as if its sources had come to their end: windows and timers fire, loops come to rest, all output is published. It cannot go on from there without gaps."],
  ["cancel", "Cancel", "Ends the job at once. What came since the last checkpoint is not published; the job can be started again from that checkpoint."],
]; // prettier-ignore

function Dialog({ chosen, name, size, close, send, sending }) {
  const place = useRef(null);
  const [wanted, setWanted] = useState(size);
  useLayoutEffect(() => place.current.showModal(), []);
  const [verb, title, text] = chosen;
  return html`<dialog ref=${place} aria-labelledby="dialog-title" onClose=${close}>
    <h2 id="dialog-title">${title}: ${name}</h2>
    <p>${text}</p>
    ${verb === "rescale" && html`<label>Parallelism <input type="number" min="1" value=${wanted} onInput=${(event) => setWanted(event.target.value)} /></label>`}
    <form method="dialog" class="buttons">
      <button type="submit">Keep the job as it is</button>
      <button type="button" class=${verb === "cancel" ? "danger" : "primary"} disabled=${sending} onClick=${() => send(verb, verb === "rescale" ? `?parallelism=${encodeURIComponent(wanted)}` : "")}>${title}</button>
    </form>
  </dialog>`;
}

/** The text of an answer to an order. */
function resultText(title, answer) {
  const path = answer?.path ? `: ${answer.path}` : answer?.workers ? `: ${answer.workers} workers` : "";
  return `${title}: ${answer?.message ?? "done"}${path}`;
}

/** The buttons of a job, and the answer to the last order. */
export function Actions({ job }) {
  const [chosen, choose] = useState(null);
  const [sending, setSending] = useState(false);
  const [answer, setAnswer] = useState("");
  const token = fragment().has("token");
  const send = async (verb, parameters) => {
    const title = ORDERS.find((one) => one[0] === verb)[1];
    setSending(true);
    setAnswer(`${title}: sent …`);
    choose(null);
    try {
      setAnswer(resultText(title, await order(job.id, verb, parameters)));
    } catch (error) {
      setAnswer(`${title} was refused: ${error.message}`);
    }
    setSending(false);
  };
  return html`<div class="actions">
    <div class="buttons" role="group" aria-label="Orders to the job">
      ${ORDERS.map((one) => html`<button key=${one[0]} type="button" title=${one[2]} class=${one[0] === "cancel" ? "danger" : ""} disabled=${!token || sending || isOver(job.status)} onClick=${() => choose(one)}>${one[1]}</button>`)}
    </div>
    <p class="muted" role="status">${token || isOver(job.status) ? answer : "Read only: the link in the job's log has the token for these buttons."}</p>
    ${chosen && html`<${Dialog} chosen=${chosen} name=${job.name} size=${job.workers} sending=${sending} close=${() => choose(null)} send=${send} />`}
  </div>`;
}
