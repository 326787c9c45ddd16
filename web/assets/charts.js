"use strict";
// Charts. Their numbers stand in the page as a table or come as JSON; colours are those of the style sheet.
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const strokes = () => [colour("--accent"), colour("--good"), colour("--warn")];
  const short = (n) => n >= 1e9 ? (n / 1e9).toFixed(1) + " G" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M" : n >= 1e4 ? (n / 1e3).toFixed(0) + " k" : String(Math.round(n * 100) / 100);

  function draw(host, series, data, bars) {
    host.textContent = "";
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const paths = bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined;
    return new uPlot({
      width: Math.max(host.clientWidth - 16, 200), height: Number(host.dataset.height || 220),
      legend: { live: true }, cursor: { y: false },
      scales: { x: { time: true, range: host.dataset.from ? () => [Date.parse(host.dataset.from + "T00:00:00Z") / 1000 - 43200, Date.parse(host.dataset.to + "T00:00:00Z") / 1000 + 43200] : undefined }, y: { range: (u, lo, hi) => [0, Math.max(hi, 1) * 1.05] } },
      axes: [axis, { ...axis, size: 60, values: (u, ticks) => ticks.map(short) }],
      series: [{}, ...series.map((label, i) => ({ label, stroke: strokes()[i % 3], width: 2, paths, fill: bars ? strokes()[i % 3] + "55" : undefined, points: { show: false }, value: (u, v) => v == null ? "" : short(v) }))],
    }, data, host);
  }

  // [data-chart=days] data-source=ID: a table of day, input and output tokens.
  function days(host) {
    const rows = [...document.getElementById(host.dataset.source).rows].map((row) => [...row.cells].map((cell) => cell.textContent));
    const data = [rows.map((r) => Date.parse(r[0] + "T00:00:00Z") / 1000), rows.map((r) => Number(r[1])), rows.map((r) => Number(r[2]))];
    draw(host, ["input tokens", "output tokens"], data, true);
  }

  // [data-chart=series] data-source=URL data-series="a|b": {"time": [...], "a": [...]}; asked for again every 5 s.
  function series(host) {
    const names = host.dataset.series.split("|"), keys = host.dataset.keys.split("|");
    let plot;
    const load = async () => {
      if (document.hidden && plot) return;
      let got;
      try {
        const reply = await fetch(host.dataset.source, { headers: { "Accept": "application/json" } });
        if (!reply.ok) return;
        got = await reply.json();
      } catch { return; }
      const data = [got.time, ...keys.map((k) => got[k])];
      if (plot) plot.setData(data); else plot = draw(host, names, data, false);
    };
    load();
    setInterval(load, 5000);
    new ResizeObserver(() => { if (plot) plot.setSize({ width: Math.max(host.clientWidth - 16, 200), height: Number(host.dataset.height || 220) }); }).observe(host);
  }

  const kinds = { days, series };
  addEventListener("DOMContentLoaded", () => {
    const start = () => document.querySelectorAll("[data-chart]").forEach((host) => kinds[host.dataset.chart](host));
    start();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
  });
})();
