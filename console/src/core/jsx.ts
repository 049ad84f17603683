// What each <element> of the sources is compiled to: build.mjs puts it into every file that has one.

export { Fragment, h } from "preact";
