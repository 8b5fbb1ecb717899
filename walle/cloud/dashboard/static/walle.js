"use strict";
(() => {
  const banner = document.getElementById("connection");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // Times: how long ago, beside the time itself.
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  function tellAges() {
    const now = Date.now() / 1000;
    for (const place of document.querySelectorAll("[data-ago]")) {
      const seconds = now - Number(place.dataset.ago), past = Math.abs(seconds);
      const [unit, size] = units.find(([, one]) => past >= one) || units[3];
      const text = `${Math.floor(past / size)} ${unit}`;
      const words = seconds >= 0 ? `(${text} ago)` : `(in ${text})`;
      if (place.textContent !== words) place.textContent = words;
    }
  }

  // Times in UTC, as in the text; with the day where a chart spans more than one.
  const utc = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 19);
  const day = (seconds) => new Date(1000 * seconds).toUTCString().slice(5, 11);
  const isLong = (times) => times.length > 1 && times.at(-1) - times[0] > 86400;
  const number = (value, unit) => value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 2 }) + unit;
  const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000];

  // Charts: data as JSON in an attribute, drawn again when it is another one.
  const drawn = new WeakMap();
  function draw(place) {
    const text = place.dataset.chart, before = drawn.get(place);
    if (before && before.text === text && before.width === place.clientWidth) return;
    const data = JSON.parse(text);
    const values = [data.x, ...data.series.map((one) => one.values)];
    if (before && before.width === place.clientWidth && before.series === data.series.length) {
      before.data = data;
      before.plot.setData(values);
      before.text = text;
      showLast(before.plot);
      return;
    }
    if (before) before.plot.destroy();
    const state = { text, data, width: place.clientWidth, series: data.series.length };
    const axis = { stroke: style("dim"), grid: { stroke: style("line"), width: 1 }, ticks: { stroke: style("line") } };
    const options = {
      width: Math.max(place.clientWidth, 200), height: 170, padding: [12, 28, 0, 0], cursor: { drag: { x: false, y: false } },
      axes: [
        { ...axis, space: 62, incrs: STEPS_S, values: (plot, times) => times.map(
          (one) => isLong(plot.data[0]) ? `${utc(one).slice(0, 5)}\n${day(one)}` : utc(one)) },
        { ...axis, size: 70, values: (_, ticks) => ticks.map((one) => number(one, state.data.unit || "")) },
      ],
      scales: { y: { range: (_, low, high) => {
        const tops = [high || 0, ...(state.data.limits || []).map((one) => one.y)];
        const top = Math.max(...tops);
        return [0, top > 0 ? top * 1.08 : 1];
      } } },
      series: [{
        label: "UTC",
        value: (plot, at) => at == null ? "–" : isLong(plot.data[0]) ? `${day(at)} ${utc(at)}` : utc(at),
      }, ...data.series.map((one) => ({
        label: one.label, stroke: style(one.color || "busy"), width: 2, points: { show: values[0].length < 30 },
        value: (_, value) => number(value, state.data.unit || ""),
      }))],
      hooks: { draw: [(plot) => lines(plot, state.data)], setCursor: [showLast], ready: [showLast] },
    };
    state.plot = new uPlot(options, values, place);
    drawn.set(place, state);
  }
  // The legend has the latest values where nothing is pointed at.
  function showLast(plot) {
    if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }
  function lines(plot, data) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11 * ratio}px system-ui`;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    const right = bbox.left + bbox.width, texts = [];
    const rule = (x0, y0, x1, y1, color) => {
      ctx.strokeStyle = style(color);
      ctx.beginPath(); ctx.moveTo(x0, y0); ctx.lineTo(x1, y1); ctx.stroke();
    };
    // A text goes where no other one is: further down, or nowhere.
    const write = (label, x, y, color) => {
      const width = ctx.measureText(label).width, height = 12 * ratio;
      const at = Math.min(x, right - width);
      for (let row = 0; row < 4; row++, y += height) {
        if (texts.some((one) => at < one.x + one.width && one.x < at + width && Math.abs(y - one.y) < height)) continue;
        texts.push({ x: at, y, width: width + 4 * ratio });
        ctx.fillStyle = style("bg");
        ctx.fillRect(at - ratio, y - 9 * ratio, width + 2 * ratio, 11 * ratio);
        ctx.fillStyle = style(color);
        ctx.fillText(label, at, y);
        return;
      }
    };
    for (const one of data.limits || []) {
      const y = plot.valToPos(one.y, "y", true);
      rule(bbox.left, y, right, y, one.color);
      write(one.label, right, y - 3 * ratio, one.color);
    }
    for (const one of data.marks || []) {
      const x = plot.valToPos(one.x, "x", true);
      rule(x, bbox.top, x, bbox.top + bbox.height, "dim");
    }
    for (const one of (data.marks || []).toReversed()) {
      write(one.label, plot.valToPos(one.x, "x", true) + 3 * ratio, bbox.top + 11 * ratio, "dim");
    }
    ctx.restore();
  }
  function refresh() {
    tellAges();
    for (const place of document.querySelectorAll("[data-chart]")) draw(place);
  }

  // The connection of the live parts. A session that has ended leads to the login.
  document.addEventListener("htmx:sse:error", (event) => {
    if (event.detail.status === 401 || event.detail.status === 403) location.reload();
    banner.hidden = false;
  });
  document.addEventListener("htmx:sse:after:connection", () => { banner.hidden = true; });
  // The extension repeats a stream that has ended, not a first request that failed.
  let pauseMs = 500;
  function connectLater(event) {
    const { ctx } = event.detail, place = ctx?.sourceElement, address = place?.getAttribute("hx-sse:connect");
    if (!address) return;
    const status = ctx.response?.status;
    if (status === 401 || status === 403) return location.reload();
    ctx.swap = "none";
    banner.hidden = false;
    setTimeout(() => { if (place.isConnected) htmx.ajax("GET", address, { source: place }); }, pauseMs * (1 + Math.random()));
    pauseMs = Math.min(2 * pauseMs, 30000);
  }
  document.addEventListener("htmx:error", connectLater);
  document.addEventListener("htmx:response:error", connectLater);
  document.addEventListener("htmx:sse:after:message", () => { banner.hidden = true; refresh(); trim(); });
  document.addEventListener("htmx:after:swap", refresh);

  // A live tail keeps its newest rows.
  function trim() {
    for (const list of document.querySelectorAll("[data-keep]")) {
      while (list.children.length > Number(list.dataset.keep)) list.lastElementChild.remove();
    }
  }

  // A link from elsewhere comes without the cookie; from this page, the same address comes with it.
  const login = document.querySelector("form[data-came-from]");
  if (login && !document.querySelector("[role=alert]")) {
    const address = login.dataset.cameFrom;
    fetch("/dashboard/login", { redirect: "manual" }).then((answer) => {
      if (answer.type === "opaqueredirect") location.replace(address);
    }).catch(() => {});
  }
  const link = document.getElementById("link");
  if (link) { link.value = location.origin + link.dataset.address; link.select(); }

  addEventListener("resize", refresh);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
  setInterval(tellAges, 5000);
  refresh();
})();
