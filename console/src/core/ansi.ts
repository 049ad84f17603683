// What a terminal would make of a line: colours and weights as classes from an allow-list, everything else left out.

export interface Style {
  fg: number; // 0 to 15, -1: none
  bg: number;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
  strike: boolean;
}
export const NONE: Style = { fg: -1, bg: -1, bold: false, dim: false, italic: false, underline: false, inverse: false, strike: false };

export interface Piece {
  text: string;
  /** Names from the allow-list: "fg-1 bold". */
  classes: string;
}

// Escape sequences: CSI with its parameters, OSC up to its end (titles, links), and the short ones.
const ESCAPES = /\x1b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])?|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~]?)/g;
const CONTROLS = /[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

/** What is seen of a line: behind the last carriage return, tabs as spaces, control characters as their pictures. */
export function seen(raw: string): string {
  let text = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
  const back = text.lastIndexOf("\r");
  if (back >= 0) text = text.slice(back + 1);
  if (text.includes("\t")) text = text.replaceAll("\t", "    ");
  return text.replace(CONTROLS, (one) => String.fromCharCode(one === "\x7f" ? 0x2421 : 0x2400 + one.charCodeAt(0)));
}

/** The text alone. */
export const plain = (text: string): string => (text.includes("\x1b") ? text.replace(ESCAPES, "") : text);

/** A line cut where its style changes, and the style behind it, which holds on the next line. */
export function styled(text: string, style: Style): { pieces: Piece[]; style: Style } {
  if (!text.includes("\x1b")) return { pieces: text ? [{ text, classes: classesOf(style) }] : [], style };
  const pieces: Piece[] = [];
  let now = style;
  let from = 0;
  const add = (upto: number) => upto > from && pieces.push({ text: text.slice(from, upto), classes: classesOf(now) });
  for (const found of text.matchAll(ESCAPES)) {
    add(found.index);
    from = found.index + found[0].length;
    if (found[2] === "m") now = changed(now, found[1] ?? "");
  }
  add(text.length);
  return { pieces, style: now };
}

/** The style behind a line. */
export function styleAfter(text: string, style: Style): Style {
  let now = style;
  if (text.includes("\x1b")) for (const found of text.matchAll(ESCAPES)) if (found[2] === "m") now = changed(now, found[1] ?? "");
  return now;
}

const WEIGHTS = ["bold", "dim", "italic", "underline", "inverse", "strike"] as const;
const BY_CODE: Record<number, (typeof WEIGHTS)[number]> = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };

function changed(style: Style, parameters: string): Style {
  const now = { ...style };
  const codes = parameters.split(/[;:]/).map(Number);
  for (let place = 0; place < codes.length; place += 1) {
    const code = codes[place] ?? 0;
    if (code === 0) Object.assign(now, NONE);
    else if (BY_CODE[code]) now[BY_CODE[code]] = true;
    else if (code === 22) now.bold = now.dim = false;
    else if (BY_CODE[code - 20]) now[BY_CODE[code - 20]!] = false;
    else if (code === 39) now.fg = -1;
    else if (code === 49) now.bg = -1;
    else if (code >= 30 && code <= 37) now.fg = code - 30;
    else if (code >= 40 && code <= 47) now.bg = code - 40;
    else if (code >= 90 && code <= 97) now.fg = code - 82;
    else if (code >= 100 && code <= 107) now.bg = code - 92;
    else if (code === 38 || code === 48) {
      const kind = codes[place + 1];
      const colour = kind === 5 ? ofPalette(codes[place + 2] ?? 0) : kind === 2 ? nearest(codes[place + 2] ?? 0, codes[place + 3] ?? 0, codes[place + 4] ?? 0) : -1;
      place += kind === 5 ? 2 : kind === 2 ? 4 : 1;
      if (code === 38) now.fg = colour;
      else now.bg = colour;
    }
  }
  return now;
}

/** One of 256 colours → one of 16. */
function ofPalette(number: number): number {
  if (number < 16) return number;
  if (number >= 232) return number < 238 ? 0 : number < 246 ? 8 : number < 252 ? 7 : 15;
  const cube = number - 16;
  return nearest(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51);
}

/** Which of the 16 a colour resembles: its bright parts decide. */
function nearest(red: number, green: number, blue: number): number {
  const most = Math.max(red, green, blue);
  if (most < 64) return 0;
  const bright = most > 200 ? 8 : 0;
  const bits = (red > most / 2 ? 1 : 0) | (green > most / 2 ? 2 : 0) | (blue > most / 2 ? 4 : 0);
  return bits + bright;
}

function classesOf(style: Style): string {
  if (style === NONE) return "";
  const names: string[] = WEIGHTS.filter((name) => style[name]);
  if (style.fg >= 0) names.push(`fg-${style.fg % 8}`);
  if (style.bg >= 0) names.push(`bg-${style.bg % 8}`);
  return names.join(" ");
}

const LINKS = /https?:\/\/[^\s<>"'`\x1b]*[^\s<>"'`\x1b.,;:!?)\]}]/g;

/** Where links are in a text: those with http or https, nothing else. */
export function linksIn(text: string): [number, number][] {
  return text.includes("://") ? [...text.matchAll(LINKS)].map((found) => [found.index, found.index + found[0].length]) : [];
}
