// Colours: a perceptually uniform map for weights, and OKLab for places in a plane.

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

const quantile = (values, share) => values.sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];

// "rrggbb…" to bytes, 256 colours.
function heatTable(hex) {
  return Uint8Array.from({ length: hex.length / 2 }, (_, i) => parseInt(hex.slice(2 * i, 2 * i + 2), 16));
}

// OKLab (Ottosson) to sRGB bytes.
function oklab(lightness, a, b) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => {
    const v = clamp(value, 0, 1);
    return Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
  });
}

// A colour for a point whose coordinates run from -1 to 1: nearby points look alike.
function placeColour(x, y, z = 0) {
  return oklab(0.64 + 0.2 * clamp(z, -1, 1), 0.17 * clamp(x, -1, 1), 0.17 * clamp(y, -1, 1));
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

// A colour of the theme in use.
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
