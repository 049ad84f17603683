// Why a plan time has no task, in the same words everywhere.

/** The letter that is drawn, one or two words, and why. */
export const REASONS: Record<string, readonly [string, string, string]> = {
  overlap: ["o", "overlap", "the run before it had not ended"],
  paused: ["p", "paused", "its schedule was disabled or its job held"],
  misfire: ["m", "misfire", "found too late to run"],
  coalesced: ["c", "coalesced", "found late, and a later one ran in its place"],
  queue_full: ["q", "queue full", "as many tasks of its job waited as may"],
  skipped: ["s", "by hand", "a person skipped it"],
  no_scopes: ["n", "no scopes", "there was nothing to run it for"],
};
