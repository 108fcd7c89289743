// Small parts of the page: panels, tables, times, chips and bars.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { clock, eventSeconds, utc } from "./words.js";

/** A panel of the page, with a heading and a sentence that explains it. */
export function Panel({ id, title, about, children, wide }) {
  return html`<section class=${wide ? "panel wide" : "panel"} id=${id} aria-labelledby=${`${id}-title`}>
    <h2 id=${`${id}-title`}>${title}</h2>
    ${about && html`<p class="about">${about}</p>`}
    ${children}
  </section>`;
}

/** A time of day, with UTC as its tooltip. */
export function Time({ at, now }) {
  return html`<time datetime=${new Date(at * 1000).toISOString()} title=${utc(at)}>${clock(at, now)}</time>`;
}

/** Event time: a time of day, or in words that there is none yet, or that it has come to its end. */
export function EventTime({ text, now }) {
  const seconds = eventSeconds(text);
  if (seconds !== null) return html`<${Time} at=${seconds} now=${now} />`;
  return html`<span class="muted">${text === "end" ? "at its end" : text === "-inf" ? "none yet" : "not used"}</span>`;
}

/** A table. `heads`: headings, those of figures as `[text]`; `rows`: arrays of cells with a `key`. */
export function Table({ label, heads, rows, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const figure = heads.map(Array.isArray);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${label}`}>
    <table>
      <caption class="hidden">${label}</caption>
      <thead><tr>${heads.map((head) => (head === "" ? html`<td></td>` : html`<th scope="col" class=${Array.isArray(head) ? "figure" : ""}>${head}</th>`))}</tr></thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr key=${row.key} class=${row.mark ?? ""}>
            ${row.cells.map((cell, place) =>
              place === 0 ? html`<th scope="row">${cell}</th>` : html`<td class=${figure[place] ? "figure" : ""}>${cell}</td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** A word with a mark in front, so that its color is not needed. */
export function Chip({ kind, mark, children }) {
  return html`<span class=${`chip ${kind}`}><span aria-hidden="true">${mark}</span> ${children}</span>`;
}

/** A bar of a share of 1. */
export function Bar({ share, kind = "" }) {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return html`<svg class=${`bar ${kind}`} viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
    <rect class="track" width="100" height="8" /><rect class="fill" width=${width} height="8" />
  </svg>`;
}

/** Figures with their names. */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value, note]) => html`<div key=${name}><dt>${name}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`)}
  </dl>`;
}
