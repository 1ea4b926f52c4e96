// A headless Chromium, spoken to through its debugging pipe, and a server for what
// it opens. Nothing beyond this machine is reached: every other host is refused.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';

const TYPES = {
  '.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript', '.css': 'text/css',
  '.json': 'application/json', '.wasm': 'application/wasm', '.woff2': 'font/woff2',
};

/** Serves folders by their names, each as [name, folder]. */
export async function serve(folders) {
  const server = http.createServer((request, response) => {
    const wanted = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    const [, name, ...rest] = path.posix.normalize(wanted).split('/');
    const folder = folders.get(name);
    const file = folder && path.join(folder, ...rest);
    if (!file || !fs.existsSync(file) || !fs.statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    const type = TYPES[path.extname(file)] ?? 'application/octet-stream';
    response.writeHead(200, { 'Content-Type': type, 'Content-Length': fs.statSync(file).size });
    fs.createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { port: server.address().port, close: () => server.close() };
}

export class Browser {
  /** Starts a program with its files in a folder, which the caller removes. */
  static async start(program, profile) {
    const child = spawn(program, [
      '--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--mute-audio',
      '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1', '--window-size=1600,1000',
      '--remote-debugging-pipe', `--user-data-dir=${profile}`, 'about:blank',
    ], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
    const browser = new Browser(child);
    const { targetId } = await browser.send('Target.createTarget', { url: 'about:blank' });
    const attached = await browser.send('Target.attachToTarget', { targetId, flatten: true });
    browser.session = attached.sessionId;
    for (const domain of ['Page', 'Runtime', 'Log']) await browser.send(`${domain}.enable`);
    return browser;
  }

  constructor(child) {
    this.child = child;
    [this.count, this.waiting, this.messages] = [0, new Map(), []];
    let rest = '';
    child.stdio[4].on('data', (data) => {
      const parts = (rest + data).split('\0');
      rest = parts.pop();
      for (const part of parts) this.take(JSON.parse(part));
    });
    child.on('exit', () => {
      for (const { reject } of this.waiting.values()) reject(new Error('the browser has gone'));
      this.waiting.clear();
    });
  }

  take({ id, result, error, method, params }) {
    if (id !== undefined) {
      const { resolve, reject } = this.waiting.get(id);
      this.waiting.delete(id);
      if (error) reject(new Error(error.message));
      else resolve(result);
    } else if (method === 'Runtime.consoleAPICalled') {
      const text = params.args.map((a) => a.value ?? a.description).join(' ');
      this.messages.push({ kind: params.type, text });
    } else if (method === 'Runtime.exceptionThrown') {
      const { exception, text } = params.exceptionDetails;
      this.messages.push({ kind: 'exception', text: exception?.description ?? text });
    } else if (method === 'Log.entryAdded') {
      this.messages.push({ kind: `log ${params.entry.level}`, text: params.entry.text });
    } else if (method === 'Page.javascriptDialogOpening') {
      this.messages.push({ kind: 'dialog', text: params.message });
      this.send('Page.handleJavaScriptDialog', { accept: true });
    }
  }

  send(method, params = {}) {
    const id = ++this.count;
    const message = { id, method, params, sessionId: this.session };
    this.child.stdio[3].write(`${JSON.stringify(message)}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  /** The value of an expression in the page; undefined while there is no page. */
  async value(expression) {
    const options = { expression, returnByValue: true, awaitPromise: true };
    const { result } = await this.send('Runtime.evaluate', options);
    return result.value;
  }

  /** Opens a page and waits until an expression is true in it; gives what it said. */
  async open(url, ready, seconds) {
    this.messages = [];
    await this.send('Page.navigate', { url });
    const end = Date.now() + seconds * 1000;
    while (!(await this.value(ready))) {
      if (Date.now() > end) {
        const text = await this.value('document.body?.innerText');
        throw new Error(`${url}: not ready: ${text} ${JSON.stringify(this.messages)}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
    return this.messages;
  }

  async picture(file) {
    // What is animated comes to rest.
    await new Promise((resolve) => setTimeout(resolve, 1500));
    const { data } = await this.send('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(file, Buffer.from(data, 'base64'));
  }

  async close() {
    const gone = new Promise((resolve) => this.child.on('exit', resolve));
    // Its answer is lost with it.
    this.send('Browser.close').catch(() => {});
    const late = setTimeout(() => this.child.kill('SIGKILL'), 5000);
    await gone;
    clearTimeout(late);
  }
}
