// Output as it is written: pages up to the present, then a stream; after a lost one from the last piece on, without gap or
// repetition. Closed while the tab is hidden. Two tabs have a stream; others ask once a second, because a browser opens
// six connections to one origin and the console's own events need three of them (core/live).

import { call, Refusal, urlOf } from "./api";
import { takePlace } from "./places";
import type { PieceView } from "./schema";

export type Following = { state: "loading" | "live" | "ended" | "held" } | { state: "lost"; since: number } | { state: "refused"; refusal: Refusal };

export interface Hear {
  pieces: (pieces: PieceView[]) => void;
  now: (following: Following) => void;
}

const TAIL = "1m"; // bytes before the end with which a reader begins
const ASK_EVERY = 1_000; // ms between two pages, without a stream
const SHORTEST = 400; // ms before the first attempt to connect again; doubles up to
const LONGEST = 10_000;
const PLACES = 2; // tabs with a stream of output

export class Follower {
  private after: string | null;
  private stop = new AbortController();
  private failures = 0;

  constructor(
    private readonly id: number,
    private readonly attempt: number | null,
    private readonly hear: Hear,
    after: string | null = null,
  ) {
    this.after = after;
    void this.run();
  }

  close(): void {
    this.stop.abort();
  }

  private get isClosed(): boolean {
    return this.stop.signal.aborted;
  }

  private async run(): Promise<void> {
    this.hear.now({ state: "loading" });
    while (!this.isClosed) {
      try {
        await this.visible();
        if (await this.catchUp()) return this.isClosed ? undefined : this.hear.now({ state: "ended" });
        this.hear.now({ state: "live" });
        this.failures = 0;
        await this.stream();
      } catch (error) {
        if (this.isClosed) return;
        if (error instanceof Refusal && error.status >= 400 && error.status < 500 && error.status !== 429) return this.hear.now({ state: "refused", refusal: error });
        if (this.failures === 0) this.hear.now({ state: "lost", since: Date.now() });
        this.failures += 1;
        await this.pause(Math.min(LONGEST, SHORTEST * 2 ** Math.min(this.failures, 5)) * (0.5 + Math.random()));
      }
    }
  }

  /** Pages until there is no more now; true: and there will be none. */
  private async catchUp(): Promise<boolean> {
    for (;;) {
      const from = this.after === null ? { tail: TAIL } : { after: this.after };
      const page = await call("GET /tasks/{id}/output", { id: this.id, attempt: this.attempt, ...from }, undefined, { signal: this.stop.signal });
      if (this.isClosed) return true;
      this.after = page.next ?? this.after;
      if (page.items.length) this.hear.pieces(page.items);
      if (page.next === null) return true;
      if (!page.items.length) return false;
    }
  }

  /** Until the task has ended, the tab is hidden, or the stream is lost, which is an error. */
  private async stream(): Promise<void> {
    const place = await takePlace("output", PLACES);
    if (!place) return this.pause(ASK_EVERY);
    try {
      await this.listen();
    } finally {
      place.release();
    }
  }

  private listen(): Promise<void> {
    return new Promise((done, fail) => {
      const source = new EventSource(urlOf("GET /tasks/{id}/output", { id: this.id, attempt: this.attempt, after: this.after }));
      let waiting: PieceView[] = [];
      let timer = 0;
      const flush = () => {
        timer = 0;
        if (waiting.length && !this.isClosed) this.hear.pieces(waiting);
        waiting = [];
      };
      const end = (lost?: Error) => {
        source.close();
        clearTimeout(timer);
        flush();
        document.removeEventListener("visibilitychange", hide);
        this.stop.signal.removeEventListener("abort", leave);
        if (lost) fail(lost);
        else done();
      };
      const leave = () => end();
      const hide = () => document.hidden && end();
      source.addEventListener("output", (event) => {
        const { data, lastEventId } = event as MessageEvent<string>;
        waiting.push(JSON.parse(data) as PieceView);
        this.after = lastEventId;
        timer ||= window.setTimeout(flush, 30); // many pieces are drawn at once
      });
      source.addEventListener("bye", (event) => end((JSON.parse((event as MessageEvent<string>).data) as { reason: string }).reason === "ended" ? undefined : new Error("the stream ended")));
      source.onerror = () => end(new Error("the stream was lost"));
      document.addEventListener("visibilitychange", hide);
      this.stop.signal.addEventListener("abort", leave);
    });
  }

  private visible(): Promise<void> {
    if (!document.hidden) return Promise.resolve();
    return new Promise((done) => {
      const look = () => {
        if (document.hidden && !this.isClosed) return;
        document.removeEventListener("visibilitychange", look);
        done();
      };
      document.addEventListener("visibilitychange", look);
      this.stop.signal.addEventListener("abort", look, { once: true });
    });
  }

  private pause(ms: number): Promise<void> {
    return new Promise((done) => {
      const timer = setTimeout(done, ms);
      this.stop.signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
    });
  }
}
