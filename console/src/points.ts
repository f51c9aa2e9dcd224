// Draws the points of a map into a canvas, pixel by pixel: 100,000 points take some milliseconds, without WebGL, whose
// libraries compile code in the browser, which the page's policy forbids.
import { TableMap } from "./api";

/** The part of the map that is seen: its centre, and how many canvas pixels one unit has. */
export interface View {
  x: number;
  y: number;
  scale: number;
}

// Colours of viridis, from low to high values: even steps of lightness, told apart by people who see no red or no green.
const STOPS: [number, number, number][] = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
];
const COLORS = 256;

/** Returns the colours as RGBA in the byte order of an image. */
export function ramp(): Uint32Array {
  const found = new Uint32Array(COLORS);
  for (let at = 0; at < COLORS; at += 1) {
    const place = (at / (COLORS - 1)) * (STOPS.length - 1);
    const low = STOPS[Math.floor(place)] ?? [0, 0, 0];
    const high = STOPS[Math.min(Math.floor(place) + 1, STOPS.length - 1)] ?? low;
    const part = place - Math.floor(place);
    const [red, green, blue] = low.map((value, channel) => Math.round(value + (high[channel]! - value) * part));
    found[at] = (255 << 24) | (blue! << 16) | (green! << 8) | red!;
  }
  return found;
}

/**
 * What the colours of a map mean. values: a number for each point, null for a grey point. isLog: colours follow the
 * logarithm of values above 0. groups: names of groups; a value is then the number of a group.
 */
export interface Layer {
  name: string;
  values: (number | null)[];
  isLog?: boolean;
  groups?: string[];
}

// Colours that stay apart for people who see no red or no green, on light and on dark.
export const GROUP_COLORS = ["#3f7fd0", "#d17b0f", "#199b7d", "#b65a9e", "#8a8a2a", "#c7514c", "#5f8f3a", "#7a6ad8"];
const GREY = "#8d9099";
// Most points on the canvas whose names are written beside them.
const MAX_NAMES = 40;

/** Returns a colour such as #3f7fd0 in the byte order of an image. */
function pixel(color: string): number {
  const number = parseInt(color.slice(1), 16);
  return ((255 << 24) | ((number & 255) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

/**
 * The points of a map as typed arrays, with a colour for each. lowest, highest: the values at the ramp's ends. least,
 * most: the extreme values, which may lie beyond.
 */
export class Points {
  readonly x: Float32Array;
  readonly y: Float32Array;
  readonly lowest: number;
  readonly highest: number;
  readonly least: number;
  readonly most: number;
  /** The least and largest x, and the least and largest y. */
  private readonly bounds: [number, number, number, number];
  private readonly colors: Uint32Array;
  /** The points in the order of drawing: grey points first, so that they hide no others. */
  private readonly order: Uint32Array;

  constructor(
    readonly map: TableMap,
    readonly layer: Layer,
  ) {
    this.x = Float32Array.from(map.x, (value) => value ?? 0);
    this.y = Float32Array.from(map.y, (value) => value ?? 0);
    const span = (values: Float32Array): [number, number] => values.reduce(([low, high], one) => [Math.min(low, one), Math.max(high, one)], [Infinity, -Infinity] as [number, number]);
    this.bounds = [...span(this.x), ...span(this.y)];
    const { groups, isLog, values } = layer;
    const sorted = Float64Array.from(values.filter((value) => value !== null)).sort();
    // The outer hundredths share the end colours: one huge row must not make all others one colour.
    this.lowest = sorted[Math.floor(0.01 * (sorted.length - 1))] ?? 0;
    this.highest = sorted[Math.ceil(0.99 * (sorted.length - 1))] ?? 1;
    this.least = sorted[0] ?? Infinity;
    this.most = sorted.at(-1) ?? -Infinity;
    const scaled = (value: number): number => (isLog ? Math.log(Math.max(value, 1e-9)) : value);
    const [low, high] = [scaled(this.lowest), scaled(this.highest)];
    const all = ramp();
    const grey = pixel(GREY);
    const group = GROUP_COLORS.map(pixel);
    this.colors = Uint32Array.from(values, (value) => {
      if (value === null) return grey;
      if (groups) return group[value % group.length]!;
      const share = Math.min(Math.max((scaled(value) - low) / (high - low || 1), 0), 1);
      return all[Math.round(share * (COLORS - 1))]!;
    });
    const places = values.map((_, at) => at);
    this.order = Uint32Array.from([...places.filter((at) => values[at] === null), ...places.filter((at) => values[at] !== null)]);
  }

  /** Draws all points; `chosen` is the index of the marked one, or -1. */
  draw(context: CanvasRenderingContext2D, view: View, chosen: number, ink: string): void {
    const { width, height } = context.canvas;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const size = Math.min(Math.max(Math.round(Math.sqrt(view.scale / 120)), this.x.length > 20_000 ? 2 : this.x.length > 2000 ? 4 : 7), 9);
    const half = size >> 1;
    for (const at of this.order) {
      const left = Math.round((this.x[at]! - view.x) * view.scale + width / 2) - half;
      const top = Math.round((view.y - this.y[at]!) * view.scale + height / 2) - half;
      if (left < 0 || top < 0 || left + size > width || top + size > height) continue;
      const color = this.colors[at]!;
      for (let row = top; row < top + size; row += 1) pixels.fill(color, row * width + left, row * width + left + size);
    }
    context.putImageData(image, 0, 0);
    if (chosen >= 0) {
      const [x, y] = this.place(chosen, view, width, height);
      context.strokeStyle = ink;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x, y, size + 5, 0, 2 * Math.PI);
      context.stroke();
    }
  }

  /** The height of all points for a width of 1. */
  get aspect(): number {
    const [left, right, bottom, top] = this.bounds;
    return (top - bottom) / Math.max(right - left, 1e-6) || 1;
  }

  /** Returns the view that shows all points, as large as the canvas has room for. */
  whole(width: number, height: number): View {
    const [left, right, bottom, top] = this.bounds;
    const scale = 0.92 * Math.min(width / Math.max(right - left, 1e-6), height / Math.max(top - bottom, 1e-6));
    return { x: (left + right) / 2 || 0, y: (bottom + top) / 2 || 0, scale: Math.min(scale, 1e7) || 1 };
  }

  /** Writes the name of the marked point, and of all points on the canvas if they are few, where a name has room. */
  write(context: CanvasRenderingContext2D, view: View, chosen: number, ink: string, nameAt: (at: number) => string, ratio: number): void {
    const { width, height } = context.canvas;
    const seen: number[] = chosen >= 0 ? [chosen] : [];
    const others: number[] = [];
    for (let at = 0; at < this.x.length && others.length <= MAX_NAMES; at += 1) {
      const [x, y] = this.place(at, view, width, height);
      if (x > 0 && y > 0 && x < width && y < height && at !== chosen) others.push(at);
    }
    if (others.length <= MAX_NAMES) seen.push(...others);
    context.font = `${12 * ratio}px system-ui, sans-serif`;
    context.fillStyle = ink;
    // Points beneath a name are covered around its letters.
    context.strokeStyle = getComputedStyle(document.body).backgroundColor;
    context.lineWidth = 4 * ratio;
    context.lineJoin = "round";
    const written: [number, number, number][] = [];
    for (const at of seen) {
      const [x, y] = this.place(at, view, width, height);
      const name = nameAt(at);
      const wide = context.measureText(name).width;
      const left = x + wide + 12 * ratio > width ? x - wide - 9 * ratio : x + 9 * ratio;
      if (written.some(([from, to, top]) => left < to && left + wide > from && Math.abs(y - top) < 13 * ratio)) continue;
      written.push([left, left + wide, y]);
      context.strokeText(name, left, y + 4 * ratio);
      context.fillText(name, left, y + 4 * ratio);
    }
  }

  /** Returns where a point is on the canvas. */
  place(at: number, view: View, width: number, height: number): [number, number] {
    return [(this.x[at]! - view.x) * view.scale + width / 2, (view.y - this.y[at]!) * view.scale + height / 2];
  }

  /** Returns the index of the point nearest to a place of the map; -1 without points. */
  nearest(x: number, y: number): number {
    let found = -1;
    let least = Infinity;
    for (let at = 0; at < this.x.length; at += 1) {
      const distance = (this.x[at]! - x) ** 2 + (this.y[at]! - y) ** 2;
      if (distance < least) {
        least = distance;
        found = at;
      }
    }
    return found;
  }
}
