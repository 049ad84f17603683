// What a page shows: loaded, kept while it is loaded again, and loaded again at most once a second when something changed.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { AGAIN, call, asRefusal, session } from "./api";
import type { Answer, Name, Refusal } from "./api";
import { useLive } from "./live";
import type { Topic } from "./live";
import type { Params } from "./router";

export interface Loaded<T> {
  data: T | null;
  refusal: Refusal | null;
  isLoading: boolean;
  /** Load again now. */
  refresh: () => void;
}

export interface How {
  /** Load again when one of these changes. */
  topics?: readonly Topic[];
  /** Load again after so many seconds, whatever was heard. */
  every?: number;
  /** What was loaded for other parameters stays on screen until the new is there. */
  keep?: boolean;
  /** Not now, for example because the reader is scrolled down. */
  isHeld?: boolean;
}

const GAP = 1000; // ms between two loads that the user did not ask for

/** Load by `key`: what else decides the answer must be part of it. */
export function useQuery<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, how: How = {}): Loaded<T> {
  const [state, setState] = useState<{ key: string | null; data: T | null; refusal: Refusal | null; isLoading: boolean }>({
    key: null,
    data: null,
    refusal: null,
    isLoading: true,
  });
  const latest = useRef(load);
  latest.current = load;
  const running = useRef<AbortController | null>(null);
  const loadedAt = useRef(0);
  const timer = useRef(0);
  // What changes while an answer is on its way is loaded after it: aborting a slow one for each event would show nothing.
  const isBusy = useRef(false);
  const isStale = useRef(false);
  const soonest = useRef(() => {});

  const run = useCallback(async () => {
    if (key === null) return;
    clearTimeout(timer.current);
    timer.current = 0;
    running.current?.abort();
    const controller = (running.current = new AbortController());
    loadedAt.current = performance.now();
    isBusy.current = true;
    isStale.current = false;
    setState((old) => ({ ...old, isLoading: true }));
    try {
      const data = await latest.current(controller.signal);
      if (controller.signal.aborted) return;
      setState({ key, data, refusal: null, isLoading: false });
    } catch (error) {
      if (controller.signal.aborted) return;
      const refusal = asRefusal(error);
      setState((old) => ({ key, data: old.key === key || how.keep ? old.data : null, refusal, isLoading: false }));
      if (refusal.isPassing) timer.current = window.setTimeout(run, AGAIN);
    }
    isBusy.current = false;
    if (isStale.current) soonest.current();
  }, [key]);

  useEffect(() => {
    void run();
    return () => {
      running.current?.abort();
      isBusy.current = false;
      clearTimeout(timer.current);
      timer.current = 0;
    };
  }, [run]);

  const soon = useCallback(() => {
    if (isBusy.current) return void (isStale.current = true);
    if (timer.current || document.hidden || !session.value) return;
    timer.current = window.setTimeout(run, Math.max(0, GAP - (performance.now() - loadedAt.current)));
  }, [run]);

  soonest.current = soon;

  const isHeld = how.isHeld ?? false;
  const missed = useRef(false);
  useEffect(() => {
    if (!isHeld && missed.current) {
      missed.current = false;
      soon();
    }
  }, [isHeld, soon]);
  useLive(how.topics ?? [], () => {
    if (isHeld) missed.current = true;
    else soon();
  });

  useEffect(() => {
    if (!how.every) return undefined;
    const interval = setInterval(() => !isHeld && soon(), how.every * 1000);
    return () => clearInterval(interval);
  }, [how.every, soon, isHeld]);

  const isOld = state.key !== key;
  return {
    data: isOld && !how.keep ? null : state.data,
    refusal: isOld ? null : state.refusal,
    isLoading: state.isLoading || isOld,
    refresh: run,
  };
}

/** Ask the API, again when the parameters or `with` change; null asks nothing. */
export const useGet = <N extends Name & `GET ${string}`>(name: N, params: Params | null = {}, how: How & { with?: unknown } = {}): Loaded<Answer<N>> =>
  useQuery(params && JSON.stringify([name, params, how.with]), (signal) => call(name, params ?? {}, undefined, { signal }), how);
