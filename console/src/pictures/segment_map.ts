// Who owned which segment when: the owners of now, and the moves taken back one by one. Pure.

import type { MoveView, ServerView } from "../core/schema";

export const SEGMENTS = 100;
export const SPAN = 3_600_000; // ms that can be replayed

/** Owner of each segment by server id; null: none. */
export type Owners = (string | null)[];

export function ownersNow(servers: readonly ServerView[]): Owners {
  const owners: Owners = Array(SEGMENTS).fill(null);
  for (const { id, segments } of servers) for (const segment of segments) owners[segment] = id;
  return owners;
}

/** The owners at an instant, and the segments that had moved in the minute before it. `moves` has the newest first. */
export function ownersAt(present: Owners, moves: readonly MoveView[], at: number): { owners: Owners; moved: Set<number> } {
  const owners = [...present];
  const moved = new Set<number>();
  for (const move of moves) {
    const time = Date.parse(move.at);
    if (time > at) for (const segment of move.segments) owners[segment] = move.old_owner;
    else if (at - time < 60_000) for (const segment of move.segments) moved.add(segment);
  }
  return { owners, moved };
}

/** A letter, a colour and a pattern for each owner, in an order that does not change while they are there. */
export interface Badge {
  letter: string;
  style: string;
}
export function badges(ids: readonly string[]): Map<string, Badge> {
  return new Map(ids.map((id, place) => [id, { letter: letterOf(place), style: `owner-${place % 4} pattern-${Math.floor(place / 4) % 4}` }]));
}

const letterOf = (place: number): string => (place < 26 ? "" : String.fromCharCode(64 + Math.floor(place / 26))) + String.fromCharCode(65 + (place % 26));
