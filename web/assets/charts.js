"use strict";
// Charts. Their numbers stand in the page as a table or come as JSON; colours are those of the style sheet.
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const strokes = () => [colour("--accent"), colour("--good"), colour("--warn")];
  const short = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " G" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(0) + " k" : String(Math.round(n * 100) / 100);

  const day = (text) => Date.parse(text + "T00:00:00Z") / 1000;
  const at = (time, bars) => bars ? new Date(time * 1000).toISOString().slice(0, 10) : new Date(time * 1000).toLocaleTimeString();
  const said = (v) => v == null ? "none" : short(v);

  function draw(host, series, data, bars) {
    host.textContent = "";
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const paths = bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined;
    return new uPlot({
      width: width(host), height: height(host),
      legend: { live: true }, cursor: { y: false },
      scales: { x: { time: true, range: () => bars ? [day(host.dataset.from) - 43200, day(host.dataset.to) + 43200] : [Date.now() / 1000 - 3600, Date.now() / 1000] }, y: { range: (u, lo, hi) => [0, Math.max(hi, 1) * 1.05] } },
      axes: [axis, { ...axis, size: 60, values: (u, ticks) => ticks.map(short) }],
      series: [{ label: "at", value: (u, v) => v == null ? (bars ? "the last day" : "now") : at(v, bars) }, ...series.map((label, i) => ({ label, stroke: strokes()[i % 3], width: 2, paths, fill: bars ? strokes()[i % 3] + "55" : undefined, points: { show: false }, value: (u, v, s, i) => said(i == null ? u.data[s].at(-1) : v) }))],
    }, data, host);
  }

  const width = (host) => Math.max(host.clientWidth - 16, 200), height = (host) => Number(host.dataset.height || 220);
  function resized(host, plot) {
    new ResizeObserver(() => { if (plot()) plot().setSize({ width: width(host), height: height(host) }); }).observe(host);
  }

  // What draws a chart returns what draws it anew, in other colours.
  // [data-chart=days] data-source=ID: a table of day, input and output tokens.
  function days(host) {
    const rows = [...document.getElementById(host.dataset.source).rows].map((row) => [...row.cells].map((cell) => cell.textContent));
    const data = [rows.map((r) => day(r[0])), rows.map((r) => Number(r[1])), rows.map((r) => Number(r[2]))];
    let plot;
    const again = () => { if (plot) plot.destroy(); plot = draw(host, ["input tokens", "output tokens"], data, true); };
    again();
    resized(host, () => plot);
    return again;
  }

  // [data-chart=series] data-source=URL data-series="a|b": {"time": [...], "a": [...]}; asked for again every 5 s.
  function series(host) {
    const names = host.dataset.series.split("|"), keys = host.dataset.keys.split("|");
    let plot, data;
    const load = async () => {
      if (document.hidden && plot) return;
      let got;
      try {
        const reply = await fetch(host.dataset.source, { headers: { "Accept": "application/json" } });
        if (!reply.ok) return;
        got = await reply.json();
      } catch { return; }
      data = [got.time, ...keys.map((k) => got[k])];
      if (plot) plot.setData(data); else plot = draw(host, names, data, false);
    };
    load();
    setInterval(load, 5000);
    resized(host, () => plot);
    return () => { if (plot) { plot.destroy(); plot = draw(host, names, data, false); } };
  }

  const kinds = { days, series };
  addEventListener("DOMContentLoaded", () => {
    const charts = [...document.querySelectorAll("[data-chart]")].map((host) => kinds[host.dataset.chart](host));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((again) => again()));
  });
})();
