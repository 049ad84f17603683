// What canvases draw with: the colours of the tokens by their names, and one call for each shape.

const TURN = 2 * Math.PI;

/** The value of a token, such as "accent", where an element stands. */
export function tokensOf(element: Element): (name: string) => string {
  const style = getComputedStyle(element);
  const known: Record<string, string> = {};
  return (name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim());
}

export class Pen {
  private font = "";

  constructor(
    readonly on: CanvasRenderingContext2D,
    readonly token: (name: string) => string,
  ) {}

  /** Filled with a colour of the tokens. */
  box(colour: string, x: number, y: number, width: number, height: number): void {
    this.on.fillStyle = this.token(colour);
    this.on.fillRect(x, y, width, height);
  }

  edge(colour: string, thick: number, x: number, y: number, width: number, height: number): void {
    this.ink(colour, thick);
    this.on.strokeRect(x, y, width, height);
  }

  /** From point to point: x, y, x, y … */
  line(colour: string, thick: number, ...points: number[]): void {
    this.ink(colour, thick);
    this.path(points);
    this.on.stroke();
  }

  shape(colour: string, ...points: number[]): void {
    this.on.fillStyle = this.token(colour);
    this.path(points);
    this.on.fill();
  }

  disc(colour: string, x: number, y: number, radius: number): void {
    this.on.fillStyle = this.token(colour);
    this.on.beginPath();
    this.on.arc(x, y, radius, 0, TURN);
    this.on.fill();
  }

  /** A part of a ring, clockwise from twelve o'clock, in shares of the circle. */
  arc(colour: string, thick: number, x: number, y: number, radius: number, from = 0, to = 1): void {
    this.ink(colour, thick);
    this.on.beginPath();
    this.on.arc(x, y, radius, (from - 0.25) * TURN, (to - 0.25) * TURN);
    this.on.stroke();
  }

  text(words: string, x: number, y: number, colour: string, size: number, weight = 400, align: CanvasTextAlign = "center", room?: number): void {
    const font = `${weight} ${size}px ${this.token("font")}`;
    if (font !== this.font) this.on.font = this.font = font; // reading one costs more than a letter
    Object.assign(this.on, { fillStyle: this.token(colour), textAlign: align, textBaseline: "middle" });
    this.on.fillText(words, x, y, room);
  }

  faint(share: number, draw: () => void): void {
    this.on.globalAlpha = share;
    draw();
    this.on.globalAlpha = 1;
  }

  /** Draw within a box only. */
  within(x: number, y: number, width: number, height: number, draw: () => void): void {
    this.on.save();
    this.on.beginPath();
    this.on.rect(x, y, width, height);
    this.on.clip();
    draw();
    this.on.restore();
    this.font = "";
  }

  private ink(colour: string, thick: number): void {
    this.on.strokeStyle = this.token(colour);
    this.on.lineWidth = thick;
  }

  private path(points: number[]): void {
    this.on.beginPath();
    for (let at = 0; at < points.length; at += 2) this.on.lineTo(points[at]!, points[at + 1]!);
  }
}

/** A pen for a canvas of this size, in device pixels, with the colours of `where`. */
export function penOn(canvas: HTMLCanvasElement, width: number, height: number, where: Element | ((name: string) => string) = canvas): Pen {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    Object.assign(canvas, { width: wide, height: high });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }
  const on = canvas.getContext("2d")!;
  on.setTransform(ratio, 0, 0, ratio, 0, 0);
  on.clearRect(0, 0, width, height);
  return new Pen(on, typeof where === "function" ? where : tokensOf(where));
}
