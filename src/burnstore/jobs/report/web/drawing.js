// Drawing: histograms as SVG, small ones for the table and one to read.
// A histogram is [first, exponent, counts]: bar i reaches from (first + i) to (first + i + 1) times 2 ** exponent.

const SVG = "http://www.w3.org/2000/svg";

function shape(kind, attributes, ...children) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Where the bars of these histograms lie within 100 × 100. Positions are in units of the narrowest bars, not in values,
// which may be close to the largest number there is; of wider bars the height is what a unit of the axis holds.
function axes(histograms, isLog) {
  const unit = Math.min(...histograms.map(([, exponent]) => exponent));
  const place = ([first, exponent], at) => (first + at) * 2 ** (exponent - unit);
  const held = ([, exponent], count) => count / 2 ** (exponent - unit);
  const low = Math.min(...histograms.map((each) => place(each, 0)));
  const high = Math.max(...histograms.map((each) => place(each, each[2].length)));
  const most = Math.max(...histograms.map((each) => held(each, Math.max(...each[2]))));
  return {
    x: (histogram, at) => ((100 * (place(histogram, at) - low)) / (high - low)).toFixed(2),
    y: (histogram, count) => {
      const share = isLog ? Math.log1p(held(histogram, count)) / Math.log1p(most) : held(histogram, count) / most;
      return (100 - Math.max(100 * share, count ? 1.5 : 0)).toFixed(2); // what counts anything is seen
    },
    low: low * 2 ** unit,
    high: Math.min(high * 2 ** unit, Number.MAX_VALUE),
  };
}

function barsPath(histogram, { x, y }) {
  const bars = histogram[2].map((count, at) => (count ? `M${x(histogram, at)} 100V${y(histogram, count)}H${x(histogram, at + 1)}V100Z` : ""));
  return bars.join("");
}

function outlinePath(histogram, { x, y }) {
  const steps = histogram[2].map((count, at) => `V${y(histogram, count)}H${x(histogram, at + 1)}`);
  return `M${x(histogram, 0)} 100${steps.join("")}V100`;
}

// A small histogram, with that of the first file as a line over it.
function sparkline(histograms) {
  const drawn = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  const scale = axes(histograms, false);
  drawn.append(shape("path", { class: "bars", d: barsPath(histograms[0], scale) }));
  if (histograms[1]) drawn.append(shape("path", { class: "bars-other", d: outlinePath(histograms[1], scale) }));
  return drawn;
}

// --- heat maps: blue for negative values, red for positive ones; grey for what is not finite ---

const COLD = [33, 102, 172];
const NEUTRAL = [247, 245, 242];
const WARM = [178, 34, 43];

function colourOf(value, low, high) {
  const most = low < 0 && high > 0 ? Math.max(-low, high) : high - low;
  const part = most === 0 ? 0 : low < 0 && high > 0 ? value / most : high <= 0 ? (value - high) / most : (value - low) / most;
  const end = part < 0 ? COLD : WARM;
  return NEUTRAL.map((level, at) => Math.round(level + (end[at] - level) * Math.min(Math.abs(part), 1)));
}

function painted(width, height, colourAt) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  for (let at = 0; at < width * height; at += 1) picture.data.set([...colourAt(at), 255], 4 * at);
  context.putImageData(picture, 0, 0);
  return canvas;
}

// The values of a tensor as an image, and the bar that says which colour is which value.
function heatMap([height, width, , , low, high, text], label) {
  const levels = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const valueOf = (level) => low + (high - low) * ((level - 1) / 254);
  const image = painted(width, height, (at) => (levels[at] ? colourOf(valueOf(levels[at]), low, high) : [128, 128, 128]));
  image.className = "heat";
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", label);
  const bar = painted(128, 1, (at) => colourOf(low + ((high - low) * at) / 127, low, high));
  bar.className = "colours";
  bar.setAttribute("aria-hidden", "true");
  return { image, bar };
}

// A chart of one histogram, or of two over each other; `draw` draws it anew with heights as they are or as logarithms.
function chart(histograms, label) {
  const drawn = shape("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
  const draw = (isLog) => {
    const scale = axes(histograms, isLog);
    const [main, other] = histograms;
    drawn.replaceChildren(
      shape("path", { class: "bars", d: barsPath(main, scale) }),
      shape("path", { class: "axis", d: "M0 100H100" }),
    );
    if (other) drawn.append(shape("path", { class: "bars-other", d: outlinePath(other, scale) }));
    return scale;
  };
  return { drawn, draw };
}
