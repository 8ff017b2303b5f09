// Unpacks plotly, draws every panel, and keeps their time axes together: who zooms one zooms all.
(async () => {
  const text = (id) => document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text("plotly").trim()), (c) => c.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const code = document.createElement("script");
  code.textContent = await new Response(unpacked).text();
  document.head.append(code);

  const font = { family: 'system-ui, -apple-system, "Segoe UI", sans-serif', size: 12, color: "#3a3f47" };
  const ticks = (days) => [
    { dtickrange: [null, 1000], value: "%-H:%M:%S.%L" },
    { dtickrange: [1000, 60000], value: "%-H:%M:%S" },
    { dtickrange: [60000, 86400000], value: days ? "%-H:%M\nday %-j" : "%-H:%M:00" },
    { dtickrange: [86400000, null], value: "day %-j" },
  ];
  const base = {
    font, hovermode: "x unified", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: "zoom", showlegend: true,
    hoverlabel: { font: { ...font, size: 11 }, bgcolor: "rgba(255,255,255,0.95)" },
    legend: { orientation: "h", yanchor: "top", x: 0, font: { ...font, size: 11.5 } },
    margin: { l: 64, r: 14, t: 30, b: 64 },
  };
  const config = { displayModeBar: false, responsive: true };
  const plots = [];
  for (const figure of JSON.parse(text("figures"))) {
    const { xaxis, yaxis } = figure.layout;
    const days = new Date(xaxis.range[1]) - new Date(xaxis.range[0]) > 90000000;
    const grid = { gridcolor: "#eceef1", zerolinecolor: "#d5d9de", linecolor: "#c9ced6" };
    const layout = {
      ...base, ...figure.layout, legend: { ...base.legend, y: days ? -0.3 : -0.22 },
      xaxis: { ...grid, showline: true, ticks: "outside", tickformatstops: ticks(days), hoverformat: "day %-j, %-H:%M:%S", ...xaxis },
      yaxis: { ...grid, ...yaxis },
    };
    const plot = document.getElementById(figure.key);
    await Plotly.newPlot(plot, figure.data, layout, config);
    plots.push(plot);
  }
  let busy = false;
  for (const plot of plots) {
    plot.on("plotly_relayout", async (change) => {
      const whole = change["xaxis.autorange"], from = change["xaxis.range[0]"], until = change["xaxis.range[1]"];
      if (busy || (!whole && from === undefined)) return;
      busy = true;
      const same = (other) => whole ? { "xaxis.range": JSON.parse(other.dataset.whole) } : { "xaxis.range": [from, until] };
      await Promise.all(plots.map((other) => Plotly.relayout(other, same(other))));
      busy = false;
    });
    plot.dataset.whole = JSON.stringify(plot.layout.xaxis.range);
  }
  document.body.dataset.drawn = "yes";
})();
