// State outside components: a component that reads a signal while it renders is rendered again when the signal changes.

import { Fragment, options } from "preact";
import type { ComponentType, FunctionComponent } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** A component that has been rendered, and what it read while it was. */
interface Reader {
  read: Set<Signal<unknown>>;
  again: () => void;
}

let reading: Reader | null = null;

export class Signal<T> {
  #value: T;
  readonly #told = new Set<() => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    if (reading) {
      reading.read.add(this as Signal<unknown>);
      this.#told.add(reading.again);
    }
    return this.#value;
  }

  set value(value: T) {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const tell of [...this.#told]) tell();
  }

  /** Read it without being told when it changes. */
  peek(): T {
    return this.#value;
  }

  /** Call now and after each change, until the function that is returned is called. */
  subscribe(told: (value: T) => void): () => void {
    const tell = () => told(this.#value);
    this.#told.add(tell);
    tell();
    return () => this.forget(tell);
  }

  forget(tell: () => void): void {
    this.#told.delete(tell);
  }
}

export const signal = <T>(value: T): Signal<T> => new Signal(value);

/** The same component, rendered again when a signal changes that it read the last time. */
function reader(component: FunctionComponent): FunctionComponent {
  return (props) => {
    const [, change] = useState({});
    const [own] = useState((): Reader => ({ read: new Set(), again: () => change({}) }));
    // As a layout effect: one that is unmounted before its effects have run would never be forgotten.
    useLayoutEffect(() => () => own.read.forEach((one) => one.forget(own.again)), []);
    const outer = reading;
    const before = own.read;
    own.read = new Set();
    reading = own;
    try {
      return component(props);
    } finally {
      reading = outer;
      for (const one of before) if (!own.read.has(one)) one.forget(own.again);
    }
  };
}

// Preact calls this for every element that is made; only its public interface is used.
const readers = new WeakMap<ComponentType, ComponentType>();
const others = options.vnode;
options.vnode = (made) => {
  const type = made.type as ComponentType | string;
  if (typeof type === "function" && type !== (Fragment as unknown)) {
    let found = readers.get(type);
    if (!found) {
      readers.set(type, (found = reader(type as FunctionComponent)));
      readers.set(found, found);
    }
    made.type = found as typeof made.type;
  }
  others?.(made);
};
