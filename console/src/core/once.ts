// Work that many events ask for: at most once a second, one at a time, and never left out.

import { useEffect, useMemo, useRef } from "preact/hooks";

const GAP = 1000; // ms between two runs that nobody asked for

export function useCoalesced(run: () => Promise<unknown>): () => void {
  const latest = useRef(run);
  latest.current = run;
  const state = useMemo(() => ({ timer: 0, at: -Infinity, isRunning: false, isWanted: false, isGone: false }), []);
  useEffect(
    () => () => {
      state.isGone = true;
      clearTimeout(state.timer);
    },
    [],
  );
  return useMemo(() => {
    const soon = () => {
      if (state.isRunning) return void (state.isWanted = true);
      if (state.timer || state.isGone) return;
      state.timer = window.setTimeout(go, Math.max(0, GAP - (performance.now() - state.at)));
    };
    const go = async () => {
      state.timer = 0;
      state.at = performance.now();
      state.isRunning = true;
      try {
        await latest.current();
      } catch {
        // what asked will ask again; a lost server is told by the live dot
      }
      state.isRunning = false;
      if (state.isWanted) {
        state.isWanted = false;
        soon();
      }
    };
    return soon;
  }, []);
}
