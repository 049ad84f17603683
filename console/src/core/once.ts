// Work that many events ask for: at most once a second, one at a time, and never left out.

import { useEffect, useMemo, useRef } from "preact/hooks";

const GAP = 1000; // ms between two runs that the user did not ask for

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
        // the caller asks again; the live dot shows a lost server
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
