// Rates and lag of the last 15 minutes as charts.

import { html, useEffect, useRef } from "./vendor/htm-preact-3.1.1.module.js";
import { MINUTES } from "./feed.js";
import { count, duration, percent, rate, size } from "./words.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function optionsOf(title, series, format, width) {
  const [text, grid] = [color("--muted"), color("--line")];
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    title: undefined,
    width,
    height: 130,
    legend: { show: false },
    cursor: { show: false },
    axes: [{ ...axis, space: 70, incrs: [60, 120, 300, 900], values: "{HH}:{mm}" }, { ...axis, size: 78, values: (_, ticks) => ticks.map((one) => format(one, "")) }],
    scales: { x: { range: (_, low, high) => [Math.max(high - 60 * MINUTES, Math.min(low, high - 120)), high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [{}, ...series.map(([, name, dash]) => ({ stroke: color(name), width: 1.6, dash, points: { show: false } }))],
  };
}

function Chart({ title, series, format, at }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    const make = () => {
      chart.current?.destroy();
      chart.current = new window.uPlot(optionsOf(title, series, format, place.current.clientWidth || 300), [at, ...series.map((one) => one[3])], place.current);
    };
    make();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    const observer = new ResizeObserver(() => chart.current?.setSize({ width: place.current.clientWidth || 300, height: 130 }));
    observer.observe(place.current);
    return () => {
      dark.removeEventListener("change", make);
      observer.disconnect();
      chart.current?.destroy();
      chart.current = null;
    };
  }, []);
  useEffect(() => chart.current?.setData([at, ...series.map((one) => one[3])]));
  const last = series.map((one) => `${one[0]} ${format(one[3].at(-1) ?? null)}`).join(", ");
  return html`<figure>
    <figcaption><b>${title}</b> ${series.map((one) => html`<span class=${`key ${one[1].slice(2)}`}>${one[0]} ${format(one[3].at(-1) ?? null)}</span> `)}</figcaption>
    <div ref=${place} class="chart" role="img" aria-label=${`${title} over the last 15 minutes; at the end ${last}`}></div>
  </figure>`;
}

/** The charts of a job. */
export function Charts({ history }) {
  const { rate_in, rate_out, busy, lag, waiting } = history.columns;
  const lagged = lag.some((one) => one !== null);
  return html`<div class="charts">
    <${Chart} title="Records" format=${rate} at=${history.at} series=${[["in", "--first", undefined, rate_in], ["out", "--second", [5, 3], rate_out]]} />
    <${Chart} title="Busiest worker" format=${(value, none) => percent(value === null ? null : value / 100, none)} at=${history.at} series=${[["busy", "--first", undefined, busy]]} />
    <${Chart} title="Waiting in channels" format=${size} at=${history.at} series=${[["bytes", "--first", undefined, waiting]]} />
    ${lagged && html`<${Chart} title="Lag" format=${history.lagUnit === "records" ? count : duration} at=${history.at} series=${[["behind", "--first", undefined, lag]]} />`}
  </div>`;
}
