// Places for streams: a browser opens six connections to one origin, so its tabs agree by locks on who has one.

export interface Place {
  number: number;
  release: () => void;
}

/** One of so many places of this name, until it is released; null: other tabs have them all. Number 0: no way to agree with them. */
export async function takePlace(name: string, most: number): Promise<Place | null> {
  if (!navigator.locks) return { number: 0, release: () => {} };
  for (let number = 1; number <= most; number += 1) {
    const found = await new Promise<Place | null>((done) => {
      void navigator.locks.request(`mainspring.${name}.${number}`, { ifAvailable: true }, (lock) => (lock ? new Promise<void>((release) => done({ number, release })) : done(null)));
    });
    if (found) return found;
  }
  return null;
}
