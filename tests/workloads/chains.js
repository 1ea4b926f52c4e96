// Chains of functions, closures, recursion, methods and async functions that burn fixed
// shares of the time; prints the shares of its CPU time that it measured itself.
'use strict';
const { performance } = require('perf_hooks');

function spin(ms) {
  const end = performance.now() + ms;
  let x = 0;
  while (performance.now() < end) {
    for (let i = 0; i < 20000; i++) x = (x * 31 + i) | 0;
  }
  return x;
}

function leafA() { return spin(4); }
function midA() { return leafA() + 1; }
function chainA() { return midA() + 1; }
function makeClosure(k) { return function closureB() { return spin(3) + k; }; }
const closure = makeClosure(7);
function chainB() { return closure() + 1; }
function recurse(n) { if (n === 0) return spin(2); return recurse(n - 1) + 1; }
function chainC() { return recurse(20) + 1; }
async function leafD() { await null; return spin(1); }
async function chainD() { return (await leafD()) + 1; }
class Thing { method() { return spin(2); } }
const thing = new Thing();
function chainE() { return [1].map((v) => thing.method() + v)[0]; }
const used = { A: 0, B: 0, C: 0, D: 0, E: 0 };
function cpu() {
  const { user, system } = process.cpuUsage();
  return user + system;
}
async function timed(name, f) { const t = cpu(); await f(); used[name] += cpu() - t; }
async function main() {
  console.log(`pid ${process.pid}`);
  const end = cpu() + Number(process.argv[2] || 6) * 1e6;
  while (cpu() < end) {
    await timed('A', chainA); await timed('B', chainB); await timed('C', chainC); await timed('D', chainD); await timed('E', chainE);
  }
  const all = Object.values(used).reduce((a, b) => a + b);
  for (const [k, v] of Object.entries(used)) console.log(`share_${k} ${v / all}`);
}
main();
