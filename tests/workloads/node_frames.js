// Ways of calling functions of JavaScript. Each function is too large to be put into its
// caller by a compiler, unless `small` is given, so that each call has a frame. `jsburn`,
// which uses the time, is reached on few ways only: see `tests/ci/alone/node.rs`.
//
// Arguments: seconds of CPU time for each thread, workers, and `small`. All threads end when the
// process has used the sum: node 20 has no clock of a thread.
'use strict';
const fs = require('fs');
const path = require('path');
const Module = require('module');
const threads = require('worker_threads');

if (threads.isMainThread) console.log(`pid ${process.pid}`);
const file = path.join(__dirname, 'node_frames_body.js');
const { seconds, workers, small } = threads.workerData || {
  seconds: Number(process.argv[2] || 4) * (1 + Number(process.argv[3] || 0)),
  workers: Number(process.argv[3] || 0),
  small: process.argv[4] === 'small',
};
// Bytecode that never runs.
const ballast = 'if (never) { let b = never; ' + 'b = (b * 3 + never) | 0; '.repeat(90) + 'never = b; }';
let source = fs.readFileSync(file, 'utf8');
if (!small) source = source.replaceAll('/* large */', ballast);
for (let n = 0; n < workers; n++) {
  new threads.Worker(__filename, { workerData: { seconds, workers: 0, small } });
}
const body = new Module(file, null);
body.filename = file;
body.paths = Module._nodeModulePaths(__dirname);
body._compile(source, file);
body.exports.jsmain(seconds, ballast);
