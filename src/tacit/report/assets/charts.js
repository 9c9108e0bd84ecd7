// Draws every figure of a page with uPlot, in the page's colours; redraws when they change, before printing too.
"use strict";
const tacit = (() => {
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const drawn = new Map();
  const units = ["B", "kB", "MB", "GB", "TB"];

  function bytes(value) {
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return `${Number(value.toPrecision(3))} ${units[unit]}`;
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(4)));
  }

  const written = (spec) => (spec.unit === "bytes" ? bytes : number);

  function legend(spec) {
    const list = document.createElement("ul");
    list.className = "legend";
    for (const line of spec.lines) {
      if (!line.name) continue;
      const item = document.createElement("li");
      const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      mark.setAttribute("viewBox", "0 0 24 10");
      mark.setAttribute("aria-hidden", "true");
      const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
      stroke.setAttribute("d", "M1 5H23");
      stroke.setAttribute("stroke", `var(${line.colour})`);
      stroke.setAttribute("stroke-width", "2.5");
      if (line.dash) stroke.setAttribute("stroke-dasharray", "5 4");
      mark.append(stroke);
      item.append(mark, document.createTextNode(line.name));
      list.append(item);
    }
    return list;
  }

  function readout(spec, index) {
    const shown = spec.lines.filter((line) => line.name);
    const last = index === null || index === undefined ? spec.x.length - 1 : index;
    const at = (values) => { for (let i = last; i >= 0; i -= 1) if (values[i] !== null) return values[i]; return null; };
    const format = written(spec);
    const parts = shown.map((line) => `${line.name} ${at(line.y) === null ? "–" : format(at(line.y))}`);
    return spec.x.length ? `Round ${spec.x[last]}: ${parts.join(", ")}` : "No rounds yet";
  }

  // The limits of the axis: from zero, or around the values, with the span that the page asks for.
  function limits(spec, low, high) {
    if (spec.zero) return [0, (high || 1) * 1.06];
    if (low === null || low === undefined) return [0, 1];
    const missing = Math.max((spec.span || 0) - (high - low), 0);
    const margin = 0.05 * Math.max(high - low, spec.span || 0) || 0.05 * Math.abs(high) || 1;
    const below = low >= 0 ? Math.min(missing / 2, low) : missing / 2;
    return [low >= 0 ? Math.max(low - below - margin, 0) : low - below - margin, high + missing - below + margin];
  }

  function options(spec, figure, width) {
    const format = written(spec);
    const axis = { stroke: () => colour("--quiet"), font: "12px system-ui, sans-serif", ticks: { show: false } };
    const grid = { stroke: () => colour("--grid"), width: 1 };
    const line = (each) => ({
      label: each.name || "", stroke: () => colour(each.colour), width: each.faint ? 0 : 2, spanGaps: true,
      dash: each.dash ? [6, 5] : undefined, points: { show: !each.faint && each.y.filter((value) => value !== null).length < 3, size: 6 },
    });
    const bands = [];
    spec.lines.forEach((each, i) => {
      if (each.band) bands.push({ series: [i + 2, i + 3], fill: () => `${colour(each.colour)}30` });
    });
    return {
      width, height: 220, legend: { show: false }, bands,
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 7 } },
      scales: { x: { time: false }, y: { range: (_, low, high) => limits(spec, low, high) } },
      axes: [
        { ...axis, grid: { show: false }, size: 30, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] },
        { ...axis, grid, size: 62, values: (_, ticks) => ticks.map((tick) => format(tick)) },
      ],
      series: [{ label: "round" }, ...spec.lines.map(line)],
      hooks: { setCursor: [(plot) => { figure.querySelector(".readout").textContent = readout(figure.tacitSpec, plot.cursor.idx); }] },
    };
  }

  // Draw a specification in a figure, or the figure again with another one.
  function chart(figure, spec) {
    const place = figure.querySelector(".plot");
    const before = drawn.get(figure);
    const columns = [spec.x, ...spec.lines.map((line) => line.y)];
    const same = before && before.names === spec.lines.map((line) => line.name + line.colour).join("\n");
    figure.tacitSpec = spec;
    figure.querySelector(".readout").textContent = readout(spec, null);
    if (same) { before.plot.setData(columns); return; }
    if (before) { before.plot.destroy(); figure.querySelector(".legend")?.remove(); }
    const plot = new uPlot(options(spec, figure, Math.max(place.clientWidth, 200)), columns, place);
    place.after(legend(spec));
    drawn.set(figure, { plot, names: spec.lines.map((line) => line.name + line.colour).join("\n") });
    if (!before) {
      new ResizeObserver(() => {
        const width = place.clientWidth;
        const current = drawn.get(figure).plot;
        if (width >= 100 && width !== current.width) current.setSize({ width, height: 220 });
      }).observe(place);
    }
  }

  const redraw = () => { for (const { plot } of drawn.values()) plot.redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    for (const each of document.querySelectorAll("details")) each.open = true;
    redraw();
  });
  addEventListener("afterprint", () => { delete root.dataset.theme; redraw(); });

  for (const figure of document.querySelectorAll("figure.chart")) {
    const source = figure.querySelector("script[type='application/json']");
    if (source) chart(figure, JSON.parse(source.textContent));
  }
  return { chart, bytes, number };
})();
