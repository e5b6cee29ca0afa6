// The page in Debian's chromium: against a scripted server, and where RUN_PLAN names a plan, against `run --serve`.
//
//   RUN=../../../target/release/run RUN_PLAN=plan.toml node --test tests/browser.test.mjs

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import axe from "axe-core";
import { chromium } from "playwright-core";
import { Fake } from "./fake.mjs";
import { HOSTILE, PATHOLOGICAL } from "./hostile.mjs";
import { SHOWPIECE } from "./showpiece.mjs";

const WIDTHS = { wide: { width: 1440, height: 900 }, medium: { width: 820, height: 1100 }, phone: { width: 390, height: 780 } };

let browser, fake;
let contexts = [];

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
});
after(() => browser.close());
afterEach(async () => {
  await Promise.all(contexts.map(context => context.close()));
  contexts = [];
  fake?.close();
  fake = undefined;
});

/** Opens the page in a fresh browser context, at a scripted server. `isWell` fails on errors and on requests to other hosts. */
async function visit(options = {}) {
  fake ??= await new Fake().listen();
  const context = await browser.newContext({ viewport: WIDTHS.wide, colorScheme: "light", ...options });
  contexts.push(context);
  return tab(context, options.address ?? fake.address);
}

async function tab(context, address) {
  const page = await context.newPage();
  page.wrong = [];
  page.asked = [];
  page.on("pageerror", error => page.wrong.push(error.stack));
  page.on("console", message => message.type() === "error" && !/status of \d|ERR_/.test(message.text()) && page.wrong.push(message.text()));
  page.on("request", request => page.asked.push(request.url()));
  page.on("dialog", dialog => (page.wrong.push(dialog.message()), dialog.dismiss()));
  await page.goto(address);
  await box(page).waitFor();
  return page;
}

const box = page => page.getByRole("textbox", { name: "Message", exact: true });
const button = (page, name) => page.getByRole("button", { name, exact: true });
const answers = page => page.locator(".answer");
const isDone = page => button(page, "Send").waitFor();

async function say(page, text) {
  await box(page).fill(text);
  await button(page, "Send").click();
}

async function chat(page, text) {
  await say(page, text);
  await page.locator(".said").filter({ hasText: text }).waitFor();
  await isDone(page);
}

function isWell(page) {
  assert.deepEqual(page.wrong, []);
  const elsewhere = page.asked.filter(url => !url.startsWith(new URL(page.url()).origin) && !url.startsWith("data:image/svg+xml,%3Csvg") && !url.startsWith("blob:"));
  assert.deepEqual(elsewhere, []);
}

/** Waits until a list of elements has these texts. */
async function reads(locator, expected) {
  for (let tries = 0; tries < 40; tries += 1) {
    if (JSON.stringify(await locator.allTextContents()) === JSON.stringify(expected)) return;
    await sleep(50);
  }
  assert.deepEqual(await locator.allTextContents(), expected);
}

const script = (...pieces) =>
  async function* () {
    yield* pieces;
  };

/** Scripts an answer that streams until the returned function is called. */
function held(first = "begun ") {
  let end;
  const ended = new Promise(resolve => (end = resolve));
  fake.script = async function* () {
    yield first;
    await ended;
    yield "end";
  };
  return end;
}

async function accessible(page, what) {
  await page.evaluate(axe.source);
  // levels of headings inside an answer are the model's
  const { violations } = await page.evaluate(() => axe.run({ rules: { "heading-order": { enabled: false } } }));
  assert.deepEqual(
    violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join(" | ")}`),
    [],
    what,
  );
}

async function fits(page, what) {
  const wide = await page.evaluate(() => {
    const thread = document.querySelector(".thread");
    return [document.documentElement.scrollWidth - innerWidth, thread.scrollWidth - thread.clientWidth, document.querySelector(".composer").getBoundingClientRect().bottom - innerHeight];
  });
  assert.ok(wide.every(pixels => pixels <= 0), `${what}: ${wide} pixels stick out`);
}

for (const [name, viewport] of Object.entries(WIDTHS)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`everything fits and is accessible: ${name}, ${colorScheme}`, async () => {
      const page = await visit({ viewport, colorScheme, hasTouch: name === "phone", isMobile: name === "phone" });
      await accessible(page, "empty");
      await fits(page, "empty");
      fake.script = script({ thought: "Reasoning of the model." }, SHOWPIECE);
      await chat(page, "A question. " + "A_word_that_is_too_long_for_any_line".repeat(9));
      await sleep(300);
      await accessible(page, "an answer");
      await fits(page, "an answer");
      if (name !== "wide") await button(page, "Show speed and memory").click();
      await page.getByText("Where a token's time goes").waitFor();
      await accessible(page, "speed and memory");
      if (name !== "wide") await page.keyboard.press("Escape");
      if (name === "phone" || name === "medium") {
        await button(page, "Show conversations").click();
        await page.getByText("Today").waitFor();
        await accessible(page, "conversations");
        await page.keyboard.press("Escape");
        assert.equal(await page.getByText("Today").count(), 0);
      }
      await button(page, "Settings").click();
      await accessible(page, "settings");
      await page.keyboard.press("Escape");
      fake.script = script({ status: 400, message: "the prompt has 5000 tokens; say it shorter" });
      await say(page, "too long");
      await page.getByRole("alert").waitFor();
      await accessible(page, "a notice");
      await fits(page, "a notice");
      isWell(page);
    });
  }
}

test("hostile Markdown runs nothing, loads nothing, and is shown as text", async () => {
  const page = await visit();
  const allowed = new Set("DIV P BR H3 H4 H5 H6 UL OL LI BLOCKQUOTE TABLE THEAD TBODY TR TH TD EM STRONG S A CODE PRE HR SPAN BUTTON svg path".split(" "));
  const mathml = new Set("math mrow mi mn mo mtext mspace mfrac msup msub msubsup munder mover munderover msqrt mroot mtable mtr mtd".split(" "));
  const attributes = new Set("class href title target rel tabindex role aria-label aria-hidden viewBox d type start display stretchy width mathvariant accent columnalign linethickness".split(" "));
  for (const hostile of HOSTILE) {
    // whole, and as it comes
    fake.script = script({ thought: hostile }, hostile);
    await chat(page, hostile);
    fake.script = script(...(hostile.match(/[^]{1,3}/g) ?? []));
    await button(page, "Regenerate").last().click();
    await isDone(page);
    const found = await page.evaluate(() =>
      [...document.querySelectorAll(".markdown *")].map(element => ({
        tag: element.tagName,
        attributes: element.getAttributeNames(),
        href: element.getAttribute("href"),
        rel: element.getAttribute("rel"),
        target: element.getAttribute("target"),
      })),
    );
    for (const element of found) {
      assert.ok(allowed.has(element.tag) || mathml.has(element.tag), `${element.tag} of ${hostile}`);
      for (const name of element.attributes) assert.ok(attributes.has(name), `${name} of ${element.tag} of ${hostile}`);
      if (element.tag === "A") {
        assert.match(element.href, /^(https?:\/\/|mailto:)/i, hostile);
        assert.equal(`${element.rel} ${element.target}`, "noopener noreferrer nofollow _blank");
      }
    }
    assert.equal(await page.evaluate(() => window.ran), undefined, hostile);
    assert.equal(await page.locator(".said").last().locator(".bubble").textContent(), hostile.trim().replaceAll("\u0000", "\u0000"), "what was said is shown as it is");
    await button(page, "New conversation").click();
  }
  // everything is in the list of conversations, too
  assert.equal(await page.locator(".entry").count(), HOSTILE.length);
  // raw HTML is shown
  fake.script = script("before <img src=x onerror=window.ran=1> after");
  await chat(page, "raw");
  assert.equal((await answers(page).locator(".markdown").textContent()).trim(), "before <img src=x onerror=window.ran=1> after");
  isWell(page);
});

test("links open in another tab that knows nothing of the page; pictures are links", async () => {
  const page = await visit();
  fake.script = script("[docs](https://example.org/a?b=c) and ![a cat](https://example.org/cat.png) and https://example.org/bare and [no](/metrics)");
  await chat(page, "links");
  const links = await answers(page).locator("a").evaluateAll(all => all.map(({ href, rel, target, textContent }) => [textContent, href, rel, target].join(" ")));
  const rest = "noopener noreferrer nofollow _blank";
  assert.deepEqual(links, [`docs https://example.org/a?b=c ${rest}`, `🖼 a cat https://example.org/cat.png ${rest}`, `https://example.org/bare https://example.org/bare ${rest}`]);
  isWell(page);
});

test("the browser itself keeps strings from becoming HTML, and script from running", async () => {
  const page = await visit();
  const blocked = await page.evaluate(async () => {
    const violations = [];
    document.addEventListener("securitypolicyviolation", event => violations.push(event.effectiveDirective));
    const fails = work => {
      try {
        work();
        return "worked";
      } catch (error) {
        return error.name;
      }
    };
    const results = [
      fails(() => (document.body.innerHTML = "<img src=x onerror=window.ran=1>")),
      fails(() => new DOMParser().parseFromString("<b>", "text/html")),
      fails(() => (document.createElement("iframe").srcdoc = "<b>")),
      fails(() => trustedTypes.createPolicy("default", {})),
    ];
    const image = document.createElement("img");
    image.src = "https://attacker.example/a.png";
    document.body.append(image);
    const button = document.createElement("button");
    button.setAttribute("style", "color: red");
    await fetch("https://attacker.example/").catch(() => results.push("no fetch"));
    await new Promise(resolve => setTimeout(resolve, 100));
    return { results, violations, ran: window.ran };
  });
  assert.deepEqual(blocked.results, ["TypeError", "TypeError", "TypeError", "TypeError", "no fetch"]);
  assert.ok(blocked.violations.includes("img-src") && blocked.violations.includes("connect-src"), `${blocked.violations}`);
  assert.equal(blocked.ran, undefined);
});

test("no Markdown takes the page down", async () => {
  const page = await visit();
  for (const [name, text] of Object.entries(PATHOLOGICAL)) {
    fake.script = script(text);
    await button(page, "New conversation").click();
    const began = Date.now();
    await chat(page, name);
    assert.equal(await answers(page).count(), 1, name);
    assert.ok(Date.now() - began < 5000, `${name} took ${Date.now() - began} ms`);
  }
  isWell(page);
});

test("a new conversation during an answer has nothing of it", async () => {
  const page = await visit();
  const end = held("secret of the first ");
  await say(page, "first");
  await page.getByText("secret of the first").waitFor();
  await button(page, "New conversation").click();
  assert.equal(await answers(page).count(), 0);
  fake.script = script("second answer");
  await chat(page, "second");
  assert.deepEqual(fake.requests[1].messages, [{ role: "user", content: "second" }]);
  // the first goes on where it belongs
  end();
  await page.getByRole("link", { name: "first" }).click();
  await page.getByText("secret of the first end").waitFor();
  assert.equal(await page.getByText("second answer").count(), 0);
  await chat(page, "third");
  assert.deepEqual(fake.requests[2].messages.map(({ content }) => content), ["first", "secret of the first end", "third"]);
  isWell(page);
});

for (const [name, viewport] of Object.entries(WIDTHS)) {
  test(`a refused message comes back, with the reason in sight: ${name}`, async () => {
    const page = await visit({ viewport });
    await chat(page, "first");
    const message = "the prompt has 5000 tokens, and the plan's context has room for 256 with the answer; say it shorter, or plan with a larger --context";
    fake.script = script({ status: 400, message });
    const long = "A long text. ".repeat(300).trim();
    await say(page, long);
    const notice = page.getByRole("alert").filter({ hasText: message });
    await notice.waitFor();
    assert.equal(await box(page).inputValue(), long);
    assert.equal(await page.locator(".said").count(), 1, "it was not sent");
    const isSeen = await notice.evaluate(element => {
      const { left, top, width, height } = element.getBoundingClientRect();
      return [[left + 20, top + 10], [left + width / 2, top + height / 2], [left + 20, top + height - 4]].every(([x, y]) => element.contains(document.elementFromPoint(x, y)));
    });
    assert.ok(isSeen, "something covers the notice");
    await page.reload();
    assert.equal(await box(page).inputValue(), long, "it outlives a reload");
    fake.script = script("short enough");
    await chat(page, "shorter");
    assert.deepEqual(fake.requests.at(-1).messages.map(({ content }) => content), ["first", "An answer.", "shorter"]);
    assert.equal(await page.getByRole("alert").count(), 0);
    isWell(page);
  });
}

test("a first message that is refused leaves no conversation behind", async () => {
  const page = await visit();
  fake.script = script({ status: 503, message: "too many requests wait already; ask again in some seconds" });
  await say(page, "hello");
  await page.getByRole("alert").waitFor();
  await page.reload();
  assert.equal(await box(page).inputValue(), "hello");
  assert.equal(await page.locator(".entry").count(), 0);
});

test("who scrolls up stays there, and can come back", async () => {
  const page = await visit({ viewport: WIDTHS.phone });
  fake.script = async function* () {
    for (let line = 0; line < 400; line += 1) {
      yield `line ${line}\n\n`;
      yield 10;
    }
  };
  await say(page, "many lines");
  const thread = page.locator(".thread");
  const away = () => thread.evaluate(({ scrollTop, scrollHeight, clientHeight }) => scrollHeight - scrollTop - clientHeight);
  await page.getByText("line 60", { exact: true }).waitFor();
  assert.ok((await away()) < 60, "the view follows the answer");
  await thread.hover();
  await page.mouse.wheel(0, -400);
  await sleep(100);
  const top = await thread.evaluate(element => element.scrollTop);
  await sleep(600);
  assert.equal(await thread.evaluate(element => element.scrollTop), top, "it stays");
  assert.ok((await away()) > 300);
  await button(page, "Follow the answer").click();
  await sleep(200);
  assert.ok((await away()) < 60, "it follows again");
  await button(page, "Stop").click();
  await isDone(page);
  isWell(page);
});

test("Escape stops an answer and leaves the focus where one writes; a dialog takes it first", async () => {
  const page = await visit();
  held("some words ");
  await say(page, "go on");
  await page.getByText("some words").waitFor();
  await page.keyboard.press("Control+,");
  await page.getByRole("dialog").waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  assert.ok(await button(page, "Stop").isVisible(), "the answer goes on");
  await page.keyboard.press("Escape");
  await isDone(page);
  await page.getByText("Stopped.", { exact: true }).waitFor();
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  assert.equal(await focused(), "Message");
  await button(page, "Copy message").last().focus();
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "Message");
  // what was stopped is part of the conversation
  fake.script = script("next");
  await chat(page, "more");
  assert.deepEqual(fake.requests[1].messages.map(({ content }) => content), ["go on", "some words ", "more"]);
  isWell(page);
});

test("a message that is stopped before its answer begins comes back", async () => {
  const page = await visit();
  fake.script = script(60_000);
  await say(page, "wait");
  await page.getByText("Waiting for the server").waitFor();
  await button(page, "Stop").click();
  await isDone(page);
  assert.equal(await box(page).inputValue(), "wait");
  assert.equal(await page.locator(".said").count(), 0);
  isWell(page);
});

test("the speed is that of this answer", async () => {
  const page = await visit();
  const paced = milliseconds =>
    async function* () {
      for (let piece = 0; piece < 20; piece += 1) {
        yield "word ";
        yield milliseconds;
      }
    };
  const speed = async () => Number(/([\d.]+) tok\/s/.exec(await page.locator(".figures .big").textContent())[1]);
  fake.script = paced(100);
  await chat(page, "slow");
  const slow = await speed();
  fake.script = paced(10);
  await chat(page, "fast");
  const fast = await speed();
  assert.ok(slow > 5 && slow < 11, `${slow}`);
  assert.ok(fast > 3 * slow, `${slow} ${fast}`);
  assert.match(await answers(page).last().textContent(), new RegExp(`20 tokens, ${fast.toFixed(1)} tok/s`));
  await page.locator(".figures").getByText("140 of 4096").count();
  await page.getByRole("img", { name: /^Time of each token: median \d+ milliseconds, planned 41$/ }).waitFor();
  isWell(page);
});

test("conversations, drafts and an interrupted answer outlive a reload", async () => {
  const page = await visit();
  await chat(page, "first");
  await button(page, "New conversation").click();
  held("half an answer ");
  await say(page, "second");
  await page.getByText("half an answer").waitFor();
  await box(page).fill("a draft");
  await sleep(400);
  await page.reload();
  await page.getByText("half an answer").waitFor();
  await page.getByText("Stopped.", { exact: true }).waitFor();
  assert.equal(await box(page).inputValue(), "a draft");
  await reads(page.locator(".entry a"), ["second", "first"]);
  await page.getByRole("link", { name: "first" }).click();
  await page.getByText("An answer.").waitFor();
  assert.equal(await box(page).inputValue(), "");
  await page.goBack();
  await page.getByText("half an answer").waitFor();
  isWell(page);
});

test("editing and asking again make branches, each of which is there", async () => {
  const page = await visit();
  let count = 0;
  fake.script = async function* () {
    yield `answer ${(count += 1)}`;
  };
  await chat(page, "first");
  await chat(page, "second");
  await button(page, "Regenerate").last().click();
  await page.getByText("answer 3").waitFor();
  await isDone(page);
  assert.deepEqual(fake.requests[2].messages, fake.requests[1].messages);
  await page.getByText("2 / 2").waitFor();
  await button(page, "Previous version").click();
  await page.getByText("answer 2").waitFor();
  // the keyboard's way to edit
  await box(page).press("ArrowUp");
  const editor = page.getByRole("textbox", { name: "Edit message" });
  assert.equal(await editor.inputValue(), "second");
  await editor.press("Escape");
  await page.locator(".said").first().hover();
  await button(page, "Edit message").first().click();
  await editor.fill("changed");
  await editor.press("Enter");
  await page.getByText("answer 4").waitFor();
  await isDone(page);
  assert.deepEqual(fake.requests[3].messages, [{ role: "user", content: "changed" }]);
  assert.equal(await page.locator(".said").count(), 1);
  await page.reload();
  await page.getByText("answer 4").waitFor();
  await button(page, "Previous version").click();
  await page.getByText("answer 3").waitFor();
  assert.equal(await page.locator(".said").count(), 2);
  await button(page, "Branch into a new conversation").first().click();
  await reads(page.locator(".bubble"), ["first"]);
  assert.equal(await page.locator(".entry").count(), 2);
  isWell(page);
});

test("conversations are renamed, found, deleted and brought back", async () => {
  const page = await visit();
  fake.script = script("about giraffes");
  await chat(page, "animals");
  await button(page, "New conversation").click();
  fake.script = script("about granite");
  await chat(page, "stones");
  await page.locator(".entry").first().hover();
  await button(page, "Rename stones").click();
  await page.getByRole("textbox", { name: "New title" }).fill("Rocks");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+k");
  await page.keyboard.type("giraffes");
  await reads(page.locator(".entry a"), ["animals"]);
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await reads(page.locator(".entry a"), ["Rocks", "animals"]);
  await page.locator(".entry").first().hover();
  await button(page, "Delete Rocks").click();
  assert.equal(await answers(page).count(), 0);
  await button(page, "Undo").click();
  await page.getByText("about granite").waitFor();
  await page.reload();
  await reads(page.locator(".entry a"), ["Rocks", "animals"]);
  await page.getByText("about granite").waitFor();
  isWell(page);
});

test("exported conversations come into another browser; a damaged file is refused", async () => {
  const page = await visit();
  fake.script = script({ thought: "hm" }, "**bold**");
  await chat(page, "export me");
  const saved = async work => {
    const [download] = await Promise.all([page.waitForEvent("download"), work()]);
    return { name: download.suggestedFilename(), text: readFileSync(await download.path(), "utf8") };
  };
  const all = await saved(() => button(page, "Export all").click());
  assert.match(all.name, /^flashplan-\d{4}-\d\d-\d\d\.json$/);
  await page.getByTitle("More", { exact: true }).click();
  const markdown = await saved(() => button(page, "Export as Markdown").click());
  assert.deepEqual(markdown, { name: "export-me.md", text: "# export me\n\n## You\n\nexport me\n\n## Model\n\n**bold**\n" });
  isWell(page);

  const other = await visit();
  const picker = other.getByLabel("Conversations to import");
  await picker.setInputFiles({ name: "all.json", mimeType: "application/json", buffer: Buffer.from(all.text) });
  await other.locator("strong", { hasText: "bold" }).waitFor();
  await other.reload();
  await other.locator("strong", { hasText: "bold" }).waitFor();
  await picker.setInputFiles({ name: "bad.json", mimeType: "application/json", buffer: Buffer.from(all.text.slice(0, -9)) });
  await other.getByRole("alert").filter({ hasText: "bad.json was not imported. This is no JSON file." }).waitFor();
  assert.equal(await other.locator(".entry").count(), 1);
  isWell(other);
});

test("two tabs on one conversation lose nothing of each other", async () => {
  const one = await visit();
  await chat(one, "first");
  const two = await tab(one.context(), one.url());
  await two.getByText("An answer.").waitFor();
  fake.script = script("from the first tab");
  await chat(one, "in one");
  fake.script = script("from the second tab");
  await two.evaluate(() => {}); // it has heard of the other's message by now, and goes on beside it
  await chat(two, "in two");
  await one.reload();
  await one.locator(".entry").first().waitFor();
  const texts = await one.evaluate(
    () =>
      new Promise(resolve => {
        indexedDB.open("flashplan").onsuccess = ({ target }) =>
          (target.result.transaction("conversations").objectStore("conversations").getAll().onsuccess = ({ target }) => resolve(target.result.flatMap(({ nodes }) => Object.values(nodes).map(({ text }) => text))));
      }),
  );
  assert.deepEqual(texts.sort(), ["An answer.", "first", "from the first tab", "from the second tab", "in one", "in two"]);
  isWell(one);
});

test("a browser that keeps nothing says so", async () => {
  fake = await new Fake().listen();
  const context = await browser.newContext({ viewport: WIDTHS.wide });
  contexts.push(context);
  await context.addInitScript(() => {
    IDBObjectStore.prototype.put = () => {
      throw new DOMException("the disk is full", "QuotaExceededError");
    };
  });
  const page = await tab(context, fake.address);
  await chat(page, "hello");
  await page.getByRole("alert").filter({ hasText: "does not keep this conversation (the disk is full). Export it" }).waitFor();
  await page.getByText("An answer.").waitFor();
});

test("the key is asked for, and the message waits for it", async () => {
  fake = await new Fake().listen();
  fake.key = "the right key";
  const page = await visit();
  const dialog = page.getByRole("dialog", { name: "This server needs a key" });
  await dialog.waitFor();
  await dialog.getByLabel("Key").fill("a wrong key");
  await page.keyboard.press("Enter");
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  await say(page, "hello");
  await dialog.waitFor();
  await dialog.getByLabel("Key").fill("the right key");
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "detached" });
  assert.equal(await box(page).inputValue(), "hello");
  await box(page).press("Enter");
  await page.getByText("An answer.").waitFor();
  isWell(page);
});

test("dropped and pasted files are attached, wherever they are dropped", async () => {
  const page = await visit();
  const give = (selector, type, name) =>
    page.evaluate(
      ([selector, type, name]) => {
        const data = new DataTransfer();
        data.items.add(new File(["text of a file"], name));
        const event = type === "paste" ? new ClipboardEvent(type, { clipboardData: data, bubbles: true, cancelable: true }) : new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true });
        return !document.querySelector(selector).dispatchEvent(event);
      },
      [selector, type, name],
    );
  assert.ok(await give(".sidebar", "dragover", "a.txt"), "the browser would open it");
  assert.ok(await give(".sidebar", "drop", "a.txt"), "the browser would open it");
  await button(page, "Remove a.txt").waitFor();
  assert.ok(await give(".box textarea", "paste", "b.txt"));
  await button(page, "Remove b.txt").waitFor();
  await button(page, "Remove a.txt").click();
  await button(page, "Send").click();
  await isDone(page);
  assert.equal(fake.requests[0].messages[0].content, "b.txt:\n```\ntext of a file\n```\n\n");
  isWell(page);
});

test("on a screen that is touched, Enter begins a line", async () => {
  const page = await visit({ viewport: WIDTHS.phone, hasTouch: true, isMobile: true });
  await box(page).tap();
  await page.keyboard.type("two");
  await page.keyboard.press("Enter");
  await page.keyboard.type("lines");
  await button(page, "Send").tap();
  await page.getByText("An answer.").waitFor();
  assert.equal(fake.requests[0].messages[0].content, "two\nlines");
  isWell(page);
});

test("the focus stays where one writes", async () => {
  const page = await visit();
  await chat(page, "hello");
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), "Message");
  await button(page, "New conversation").click();
  await page.waitForFunction(() => document.activeElement.ariaLabel === "Message");
  isWell(page);
});

test("text files go with a message; other files are refused", async () => {
  const page = await visit();
  const picker = page.getByLabel("Text files", { exact: true });
  await picker.setInputFiles({ name: "picture.png", mimeType: "image/png", buffer: Buffer.from([0x89, 0x50, 0xff, 0xfe, 0]) });
  await page.getByRole("alert").filter({ hasText: "picture.png is no text in UTF-8; attach text files." }).waitFor();
  await picker.setInputFiles([
    { name: "a.rs", mimeType: "text/plain", buffer: Buffer.from("fn main() {}\n") },
    { name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("```\nfenced\n```") },
  ]);
  await button(page, "Remove a.rs").waitFor();
  await sleep(300);
  await page.reload();
  await button(page, "Remove a.rs").waitFor();
  await chat(page, "what is this?");
  assert.equal(fake.requests[0].messages[0].content, "a.rs:\n```\nfn main() {}\n```\n\nb.txt:\n````\n```\nfenced\n```\n````\n\nwhat is this?");
  await page.locator("summary", { hasText: "a.rs" }).click();
  await page.getByText("fn main() {}").waitFor();
  isWell(page);
});

test("what has come of an answer stays when the server breaks off", async () => {
  const page = await visit();
  fake.script = script("half ", { error: "the disk failed" });
  await chat(page, "one");
  await page.getByRole("alert").filter({ hasText: "the disk failed" }).waitFor();
  await page.getByText("half").waitFor();
  fake.script = script("half again ", 100, { hangUp: true });
  await button(page, "Regenerate").click();
  await page.getByRole("alert").filter({ hasText: "The connection to the server broke off." }).waitFor();
  await page.reload();
  await page.getByText("half again").waitFor();
  fake.close();
  await say(page, "is anybody there?");
  await page.getByRole("alert").filter({ hasText: "The server does not answer. Is `run --serve` still running?" }).waitFor();
  assert.equal(await box(page).inputValue(), "is anybody there?");
});

test("settings go with each request, and with new conversations only if that is wished", async () => {
  const page = await visit();
  const setting = async (label, value) => page.getByLabel(label).fill(value);
  await button(page, "Settings").click();
  await setting("System prompt", "Answer in rhymes.");
  await setting("Temperature", "0.5");
  await setting("Max tokens", "100");
  await button(page, "Save").click();
  await chat(page, "hello");
  const [first] = fake.requests;
  assert.deepEqual([first.messages[0], first.temperature, first.max_tokens, "top_p" in first], [{ role: "system", content: "Answer in rhymes." }, 0.5, 100, false]);
  await button(page, "New conversation").click();
  await chat(page, "hello");
  assert.equal(fake.requests[1].messages.length, 1);
  await page.reload();
  await page.locator(".entry a").nth(1).click();
  await chat(page, "again");
  assert.equal(fake.requests[2].temperature, 0.5);
  await button(page, "Settings").click();
  await setting("Temperature", "7");
  await button(page, "Save").click();
  assert.ok(await page.getByRole("dialog").isVisible(), "the browser refuses a temperature of 7");
  await setting("Temperature", "1");
  await page.getByLabel("Use for new conversations, too").check();
  await button(page, "Save").click();
  await page.reload();
  await button(page, "New conversation").click();
  await chat(page, "hello");
  assert.deepEqual([fake.requests[3].temperature, fake.requests[3].messages[0].role], [1, "system"]);
  isWell(page);
});

test("a growing answer disturbs nothing above its end", async () => {
  const page = await visit();
  fake.script = async function* () {
    yield "first paragraph, to select\n\n```rust\nfn main() {}\n```\n\n";
    for (let word = 0; word < 60; word += 1) {
      yield `word${word} `;
      yield 20;
    }
  };
  await say(page, "go on");
  await page.getByText("word3 ").waitFor();
  await page.evaluate(() => {
    window.seen = [...document.querySelectorAll(".answer .markdown > *")].slice(0, 2);
    getSelection().selectAllChildren(window.seen[0]);
    window.tops = window.seen.map(element => element.getBoundingClientRect().top);
  });
  await isDone(page);
  const [same, selected, moved] = await page.evaluate(() => {
    const now = [...document.querySelectorAll(".answer .markdown > *")].slice(0, 2);
    return [now.every((element, index) => element === window.seen[index]), getSelection().toString(), now.map((element, index) => element.getBoundingClientRect().top - window.tops[index])];
  });
  assert.ok(same, "elements were made anew");
  assert.equal(selected, "first paragraph, to select");
  assert.deepEqual(moved, [0, 0]);
  isWell(page);
});

test("code is coloured and copied as it was written", async () => {
  const page = await visit();
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  const code = 'fn main() {\n\tprintln!("<b>&amp;</b>");\n}';
  fake.script = script("```rust\n" + code + "\n```\n");
  await chat(page, "code");
  assert.equal(await page.locator(".code code").textContent(), code);
  assert.equal(await page.locator(".code .hljs-keyword").first().textContent(), "fn");
  await button(page, "Copy code").click();
  await button(page, "Copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), code);
  isWell(page);
});

test("reasoning is open while it is all there is, and folded afterwards", async () => {
  const page = await visit();
  fake.script = script({ thought: "first I think" }, 400, "and then I answer");
  await say(page, "think");
  await page.getByText("first I think").waitFor();
  assert.ok(await page.getByText("first I think").isVisible());
  await isDone(page);
  assert.ok(!(await page.getByText("first I think").isVisible()));
  await page.getByText("Reasoning", { exact: true }).click();
  assert.ok(await page.getByText("first I think").isVisible());
  await chat(page, "again");
  assert.deepEqual(fake.requests[1].messages[1], { role: "assistant", content: "and then I answer" });
  isWell(page);
});

test("everything is done from the keyboard", async () => {
  const page = await visit();
  await box(page).fill("two");
  await box(page).press("Shift+Enter");
  await page.keyboard.type("lines");
  await page.keyboard.press("Enter");
  await isDone(page);
  assert.equal(fake.requests[0].messages[0].content, "two\nlines");
  await page.keyboard.press("Control+b");
  await page.locator(".sidebar").waitFor({ state: "detached" });
  await page.keyboard.press("Control+b");
  await page.locator(".sidebar").waitFor();
  await page.keyboard.press("Control+.");
  await page.locator(".figures").waitFor({ state: "detached" });
  await page.reload();
  assert.equal(await page.locator(".figures").count(), 0, "what was folded stays folded");
  await page.keyboard.press("Control+Shift+o");
  assert.equal(await answers(page).count(), 0);
  await button(page, "Settings").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), "Message");
  isWell(page);
});

test("the colours are those of the system until somebody chooses", async () => {
  const page = await visit({ colorScheme: "dark" });
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await ground(), "rgb(23, 25, 28)");
  await button(page, "Settings").click();
  await page.getByLabel("Light").check();
  assert.equal(await ground(), "rgb(255, 255, 255)");
  await page.reload();
  assert.equal(await ground(), "rgb(255, 255, 255)");
});

test("`run --serve`: its greeting's address opens the page, and the model answers", { skip: !process.env.RUN_PLAN && "RUN_PLAN names no plan" }, async () => {
  const options = ["--plan", process.env.RUN_PLAN, "--serve", "127.0.0.1:0", ...(process.env.RUN_OPTIONS?.split(" ") ?? [])];
  const server = spawn(process.env.RUN, options, { stdio: ["ignore", "ignore", "pipe"] });
  try {
    let said = "";
    server.stderr.setEncoding("utf8").on("data", text => (said += text));
    while (!/open \S+ in a browser/.test(said)) {
      assert.equal(server.exitCode, null, said);
      await sleep(50);
    }
    const page = await visit({ address: /open (\S+) in a browser/.exec(said)[1] });
    await say(page, "let x = 1");
    await answers(page).locator(".markdown").waitFor({ timeout: 60_000 });
    await isDone(page);
    await page.getByText("Where a token's time goes").waitFor();
    // this answer's speed, as the server itself counts it
    const speed = Number(/, ([\d.]+) tok\/s/.exec(await answers(page).textContent())[1]);
    while (!/at ([\d.]+) tok\/s/.test(said)) await sleep(50);
    const counted = Number(/at ([\d.]+) tok\/s/.exec(said)[1]);
    assert.ok(speed > 0.5 * counted && speed < 1.5 * counted, `${speed}, and by the server ${counted}`);
    const parts = await page.locator(".figures td").allTextContents();
    assert.ok(parts.length > 3 && parts.every(text => / ms$/.test(text)), `${parts}`);
    const long = "let x = 1; ".repeat(500).trim();
    await say(page, long);
    await page.getByRole("alert").filter({ hasText: "say it shorter" }).waitFor();
    assert.equal(await box(page).inputValue(), long);
    const reply = await fetch(page.url());
    assert.equal(reply.headers.get("content-security-policy"), readFileSync(new URL("../../src/serve/page.csp", import.meta.url), "utf8"));
    isWell(page);
  } finally {
    server.kill("SIGTERM");
    if (server.exitCode === null) await once(server, "exit");
  }
});
