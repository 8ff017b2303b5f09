// Plots: an element with `data-plot` (JSON) is drawn by uPlot in the page's colours, and drawn again when that changes.
// kind "bars": stacked counts; "lines": values, each with an optional `low` and `high` around it. `marks`: levels with a
// name, such as a limit. `times`: seconds since 1970.
"use strict";

(() => {
  const PLOTS = new Map();
  const HEIGHT = 230;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const TONES = { answered: 2, passed: 2, open: 6, waiting: 3, denied: 4 };
  const toneOf = (label, place) => `--plot-${TONES[label] ?? (label.startsWith("refused") ? 4 : (place % 6) + 1)}`;

  const short = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e6) return `${+(value / 1e6).toFixed(1)} M`;
    if (size >= 1e4) return `${+(value / 1e3).toFixed(1)} k`;
    return String(+value.toFixed(size < 10 ? 2 : 0));
  };

  function stack(series) {
    const sums = series[0].values.map(() => 0), stacked = [];
    for (const each of series) stacked.push(each.values.map((value, at) => (sums[at] += value)));
    return stacked;
  }

  function marksPlugin(marks) {
    return { hooks: { draw: (plot) => {
      const pen = plot.ctx;
      pen.save();
      pen.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      for (const mark of marks) {
        const y = plot.valToPos(mark.at, "y", true);
        if (y < plot.bbox.top - 1 || y > plot.bbox.top + plot.bbox.height + 1) continue;
        pen.strokeStyle = pen.fillStyle = colour(mark.bad ? "--bad" : "--soft");
        pen.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        pen.beginPath(); pen.moveTo(plot.bbox.left, y); pen.lineTo(plot.bbox.left + plot.bbox.width, y); pen.stroke();
        pen.textAlign = "right"; pen.textBaseline = "bottom";
        pen.fillText(mark.label, plot.bbox.left + plot.bbox.width - 4, y - 2 * devicePixelRatio);
      }
      pen.restore();
    } } };
  }

  // Without a pointer over it, a plot's legend has the newest values.
  function newestPlugin(newest) {
    const show = (plot) => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) plot.setLegend({ idx: newest }, false); };
    return { hooks: { ready: show, setCursor: show } };
  }

  function optionsOf(data, width) {
    const grid = { stroke: colour("--plot-grid"), width: 1 }, ink = colour("--soft");
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    const bars = data.kind === "bars";
    const step = data.times.length > 1 ? data.times[1] - data.times[0] : 3600;
    return {
      width, height: HEIGHT, plugins: [marksPlugin(data.marks ?? []), newestPlugin(data.times.length - 1)], cursor: { y: false, points: { show: !bars } },
      legend: { live: true }, padding: [14, 20, 0, 0],
      scales: {
        x: { time: true, range: bars ? (_plot, low, high) => [low - step / 2, high + step / 2] : undefined },
        y: { range: (_plot, low, high) => rangeOf(data, low, high) },
      },
      axes: [
        { ...axis, space: 76, values: [[86400, "{D} {MMM}"], [3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]] },
        { ...axis, size: 56, values: (_plot, ticks) => ticks.map((tick) => short(tick)) },
      ],
    };
  }

  function rangeOf(data, low, high) {
    const levels = (data.marks ?? []).map((mark) => mark.at);
    const least = Math.min(data.floor ?? 0, low ?? 0, ...levels), most = Math.max(high || 1, ...levels);
    const room = (most - least || 1) * 0.08;
    return [least < 0 ? least - room : least, most + room];
  }

  function seriesOf(data) {
    const when = { label: data.kind === "bars" ? "from" : "at", value: (_plot, at) => at === null || at === undefined ? "–" : new Date(at * 1000).toLocaleString() };
    const columns = [data.times], series = [when], bands = [];
    if (data.kind === "bars") {
      const stacked = stack(data.series);
      data.series.map((each, place) => ({ each, place })).reverse().forEach(({ each, place }) => {
        const tone = colour(toneOf(each.label, place));
        columns.push(stacked[place]);
        series.push({
          label: each.label, stroke: tone, fill: tone, width: 0, points: { show: false },
          paths: uPlot.paths.bars({ size: [0.8, 40], align: 0 }),
          value: (_plot, _value, _series, at) => at === null || at === undefined ? "–" : short(each.values[at]),
        });
      });
      return { columns, series, bands };
    }
    data.series.forEach((each, place) => {
      const tone = colour(toneOf(each.label, place));
      columns.push(each.values);
      series.push({ label: each.label, stroke: tone, width: 2, spanGaps: false, points: { show: each.values.length < 40, size: 5, fill: tone }, value: (_plot, value) => short(value) });
      if (!each.low) return;
      columns.push(each.high, each.low);
      for (const edge of ["at most", "at least"]) series.push({ label: edge, stroke: tone, width: 1, dash: [3, 3], points: { show: false }, value: (_plot, value) => short(value) });
      bands.push({ series: [columns.length - 2, columns.length - 1], fill: `${tone}22` });
    });
    return { columns, series, bands };
  }

  function drawPlot(element) {
    const theme = colour("--plot-1"), width = element.clientWidth;
    const known = PLOTS.get(element), text = element.dataset.plot;
    if (!width || (known && known.text === text && known.theme === theme && known.width === width)) return;
    const data = JSON.parse(text);
    known?.plot.destroy();
    const { columns, series, bands } = seriesOf(data);
    const plot = new uPlot({ ...optionsOf(data, width), series, bands }, columns, element);
    PLOTS.set(element, { plot, text, theme, width });
  }

  window.drawPlots = () => {
    for (const element of PLOTS.keys()) if (!element.isConnected) { PLOTS.get(element).plot.destroy(); PLOTS.delete(element); }
    document.querySelectorAll("[data-plot]").forEach(drawPlot);
  };
})();
