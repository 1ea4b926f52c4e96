'use strict';
const { performance } = require('perf_hooks');
const events = require('events');
let never = 0;
let kept = [];

function jsburn(ms) {
  /* large */
  const end = performance.now() + ms;
  let x = 0;
  while (performance.now() < end) {
    for (let i = 0; i < 20000; i++) x = (x * 31 + i) | 0;
  }
  return x;
}

// Nested functions, and a closure.
function jsinner(ms) { /* large */ return jsburn(ms) + 1; }
function jsmiddle(ms) { /* large */ return jsinner(ms) + 1; }
function jsnested() { /* large */ return jsmiddle(4) + 1; }
function jsmake(k) { return function jsclosure(ms) { /* large */ return jsburn(ms) + k; }; }
const closures = [jsmake(1), jsmake(2), jsmake(3)];
let turn = 0;
function jsclosing() { /* large */ return closures[turn++ % 3](3) + 1; }

// Recursion of one, and of two.
function jsrecurse(n) { /* large */ return n === 0 ? jsburn(3) : jsrecurse(n - 1) + 1; }
function jsrecursive() { /* large */ return jsrecurse(20) + 1; }
function jseven(n) { /* large */ return n === 0 ? jsburn(3) : jsodd(n - 1) + 1; }
function jsodd(n) { /* large */ return jseven(n - 1) + 1; }
function jsmutual() { /* large */ return jseven(6) + 1; }

// Methods: of a class, of the one that it extends, static, a getter, constructors.
class Base {
  constructor(ms) { /* large */ this.x = ms > 0 ? jsburn(ms) : 0; }
  jsmethod(ms) { /* large */ return jsburn(ms) + this.x; }
  static jsstatic(ms) { /* large */ return jsburn(ms); }
  get jsgetter() { /* large */ return jsburn(2); }
}
class Derived extends Base {
  constructor(ms) { super(ms); /* large */ }
  jsmethod(ms) { /* large */ return super.jsmethod(ms) + 1; }
}
const thing = new Derived(0);
function jsclasses() {
  /* large */
  return thing.jsmethod(2) + Base.jsstatic(2) + thing.jsgetter + new Derived(2).x;
}

// Functions that native code calls.
function jscompare(a, b) { /* large */ jsburn(1); return a - b; }
function jssorting() { /* large */ return [3, 1].sort(jscompare)[0]; }
function jsreviver(key, value) { /* large */ if (key === 'a') jsburn(2); return value; }
function jsparsing() { /* large */ return JSON.parse('{"a":1,"b":2}', jsreviver).b; }
function jsreplacer(all) { /* large */ jsburn(2); return all; }
function jsreplacing() { /* large */ return 'xax'.replace(/a/, jsreplacer).length; }
const jsmapped = (value) => { /* large */ return jsburn(2) + value; };
function jsmapping() { /* large */ return [1].map(jsmapped)[0]; }
function jsbound(ms) { /* large */ return jsburn(ms) + this.x; }
const bound = jsbound.bind({ x: 1 }, 2);
function jsbinding() { /* large */ return bound() + jsbound.apply({ x: 2 }, [1]); }
const emitter = new events.EventEmitter();
emitter.on('it', function jslistener(ms) { /* large */ jsburn(ms); });
function jsemitting() { /* large */ emitter.emit('it', 2); return 0; }

// Generators, async functions, promises.
function* jsgenerator() { /* large */ for (;;) yield jsburn(2); }
const generated = jsgenerator();
function jsgenerating() { /* large */ return generated.next().value; }
async function jsawaited() { /* large */ await null; return jsburn(2); }
async function jsawaiting() { /* large */ return (await jsawaited()) + 1; }
function jsthen(ms) { /* large */ return jsburn(ms); }
async function jspromising() { /* large */ return Promise.resolve(2).then(jsthen); }

// Code that is made at run time, again and again.
let texts = 0;
function jsevaluating(ballast) {
  /* large */
  const name = 'jseval' + (texts++ % 7);
  return eval(`(function ${name}(ms) { ${ballast} return jsburn(ms); })`)(2);
}
function jsconstructing(ballast) {
  /* large */
  const name = 'jsnew' + (texts++ % 5);
  const made = new Function('jsburn', 'never', `return function ${name}(ms) { ${ballast} return jsburn(ms); }`);
  return made(jsburn, 0)(2);
}

// Garbage, so that objects move, and exceptions.
function jsallocating() {
  /* large */
  const end = performance.now() + 3;
  let n = 0;
  while (performance.now() < end) {
    kept.push({ n, text: 'x' + n, more: [n, n + 1] });
    if (kept.length > 20000) kept = kept.slice(10000);
    n++;
  }
  return jsburn(1) + n;
}
function jsthrowing(ms) { /* large */ jsburn(ms); throw new Error('it'); }
function jscatching() { /* large */ try { return jsthrowing(2); } catch (e) { return jsburn(1); } }

async function jswork(seconds, ballast) {
  const used = () => { const { user, system } = process.cpuUsage(); return user + system; };
  while (used() < seconds * 1e6) {
    jsnested(); jsclosing(); jsrecursive(); jsmutual(); jsclasses();
    jssorting(); jsparsing(); jsreplacing(); jsmapping(); jsbinding(); jsemitting();
    jsgenerating(); await jsawaiting(); await jspromising();
    jsevaluating(ballast); jsconstructing(ballast); jsallocating(); jscatching();
  }
}
exports.jsmain = function jsmain(seconds, ballast) { jswork(seconds, ballast); };
