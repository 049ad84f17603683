// Output as lines: a window of 5 MB over any length, which grows at either end and drops at the other.

import { NONE, plain, seen, styleAfter } from "./ansi";
import type { Style } from "./ansi";
import type { PieceView } from "./schema";

export const WINDOW = 5_000_000; // bytes that are kept
const LINE = 40; // bytes that a line costs beside its text
const LONGEST = 8_000; // characters after which a line is broken

export type Stream = "stdout" | "stderr" | "remark";

export interface Line {
  /** The same for as long as the window has it, whatever is loaded before it. */
  key: string;
  token: number;
  stream: Stream | "attempt";
  at: number;
  /** As it came; `shown` is what is seen of it. */
  raw: string;
  style: Style;
  isOpen: boolean;
  /** Rows that it takes when wrapped; 0: not known. */
  rows: number;
  shown?: string | undefined;
}

interface Kept {
  token: number;
  number: number;
  stream: Stream;
  at: number;
  text: string;
  size: number;
  lines: number; // that begin in it
}
type Place = Pick<PieceView, "token" | "number">;

/** What is seen of a line, with its escape sequences. */
export const shownOf = (line: Line): string => (line.shown ??= seen(line.raw));
export const textOf = (line: Line): string => plain(shownOf(line));

const isBefore = (one: Place, other: Place): boolean => one.token < other.token || (one.token === other.token && one.number < other.number);
const cursorOf = (piece: Place | undefined): string | null => (piece ? `${piece.token}.${piece.number}` : null);

export class Output {
  lines: Line[] = [];
  size = 0;
  /** Something before the first line is not in memory. */
  hasEarlier = false;
  /** Something behind the last line was dropped. */
  hasLater = false;
  private kept: Kept[] = [];
  private decoders = new Map<Stream, TextDecoder>();
  private begun = 0; // lines that were there before the piece that is being added

  constructor(private readonly most = WINDOW) {}

  get first(): string | null {
    return cursorOf(this.kept[0]);
  }
  get last(): string | null {
    return cursorOf(this.kept.at(-1));
  }
  get isFull(): boolean {
    return this.size >= this.most;
  }

  /** Pieces behind the last: each once, however often it comes. What is too much falls out at the beginning: these lines. */
  add(pieces: readonly PieceView[]): Line[] {
    for (const piece of pieces) {
      const last = this.kept.at(-1);
      if (!last || isBefore(last, piece)) this.append(keptOf(piece, this.decoded(piece)));
    }
    let count = 0;
    let lines = 0;
    // a tenth at once: moving the rest costs the same for one piece and for many
    if (this.size > this.most) while (count < this.kept.length - 1 && this.size > this.most * 0.9) lines += this.forget(this.kept[count++]);
    if (!count) return [];
    this.kept.splice(0, count);
    this.hasEarlier = true;
    return this.lines.splice(0, lines);
  }

  /** Pieces before the first: so many lines more. What is too much falls out at the end. */
  addEarlier(pieces: readonly PieceView[]): number {
    const first = this.kept[0];
    const decoders = new Map<Stream, TextDecoder>();
    const came = pieces.filter((piece) => !first || isBefore(piece, first)).map((piece) => keptOf(piece, this.decoded(piece, decoders)));
    const rows = new Map(this.lines.map((line) => [line.key, line.rows]));
    const [old, before] = [this.kept, this.lines.length];
    this.kept = [];
    this.lines = [];
    this.size = 0;
    for (const one of [...came, ...old]) this.append(one);
    for (const line of this.lines) line.rows = rows.get(line.key) ?? 0;
    const more = this.lines.length - before;
    while (this.size > this.most && this.kept.length > came.length) {
      const lines = this.forget(this.kept.pop());
      this.lines.length -= lines;
      this.hasLater = true;
    }
    return more;
  }

  clear(): void {
    this.lines = [];
    this.kept = [];
    this.size = 0;
    this.hasEarlier = this.hasLater = false;
    this.decoders.clear();
  }

  private forget(one: Kept | undefined): number {
    this.size -= one?.size ?? 0;
    return one?.lines ?? 0;
  }

  /** Bytes that are no text of their own: a character may be cut between two pieces. */
  private decoded(piece: PieceView, decoders = this.decoders): string {
    const stream = piece.stream as Stream;
    let decoder = decoders.get(stream);
    const rest = decoder && typeof piece.text === "string" ? decoder.decode() : "";
    if (typeof piece.text === "string") return rest + piece.text;
    if (!decoder) decoders.set(stream, (decoder = new TextDecoder()));
    return decoder.decode(Uint8Array.from(atob(piece.base64 ?? ""), (one) => one.charCodeAt(0)), { stream: true });
  }

  private append(piece: Kept): void {
    const before = (this.begun = this.lines.length);
    const last = this.kept.at(-1);
    if (last && last.token !== piece.token) this.lines.push({ ...this.line(piece, "attempt"), isOpen: false });
    let from = 0;
    while (from < piece.text.length) {
      const end = piece.text.indexOf("\n", from);
      const upto = end < 0 ? piece.text.length : end;
      for (let at = from; at < upto || at === from; at += LONGEST) this.write(piece, piece.text.slice(at, Math.min(upto, at + LONGEST)), end >= 0 && at + LONGEST >= upto);
      from = upto + 1;
    }
    piece.lines = this.lines.length - before;
    piece.size = piece.text.length + piece.lines * LINE;
    this.size += piece.size;
    this.kept.push(piece);
  }

  /** Goes on in the last line if that is open and of the same stream, else in a new one. */
  private write(piece: Kept, text: string, ends: boolean): void {
    let line = this.lines.at(-1);
    if (!line?.isOpen || line.stream !== piece.stream || line.token !== piece.token || line.raw.length + text.length > LONGEST) {
      line = this.line(piece, piece.stream);
      this.lines.push(line);
    }
    line.raw += text;
    line.shown = undefined;
    line.rows = 0;
    line.isOpen = !ends;
  }

  private line(piece: Kept, stream: Line["stream"]): Line {
    const last = this.lines.at(-1);
    const style = last && last.token === piece.token ? styleAfter(shownOf(last), last.style) : NONE;
    const key = `${piece.token}.${piece.number}.${this.lines.length - this.begun}`;
    return { key, token: piece.token, stream, at: piece.at, raw: "", style, isOpen: true, rows: 0 };
  }
}

function keptOf({ token, number, stream, at }: PieceView, text: string): Kept {
  return { token, number, stream: stream as Stream, at: Date.parse(at), text, size: 0, lines: 0 };
}
