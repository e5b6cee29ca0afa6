// Pictures of the page for the guide: `node tests/pictures.mjs FOLDER`.

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium } from "playwright-core";
import { Fake } from "./fake.mjs";
import { SHOWPIECE } from "./showpiece.mjs";

const folder = process.argv[2];
const QUESTION = "Write a function in Rust that reverses each word of a sentence. How long does it take?";
const OTHERS = ["Why is the sky dark at night?", "Rhymes with “plan”", "Explain io_uring in five sentences"];

const fake = await new Fake().listen();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });

/** An answer at about the planned pace, whatever else the machine does. */
async function* paced() {
  yield { thought: "Words are split at spaces; each is reversed by characters." };
  let due = Date.now();
  for (const word of SHOWPIECE.split("### See also")[0].match(/\s*\S+/g)) {
    due += 33 + 10 * Math.random() + (Math.random() < 0.05 ? 35 : 0);
    yield Math.max(0, due - Date.now());
    yield word;
  }
}

async function picture(name, options, show) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  await page.goto(fake.address);
  const box = page.getByRole("textbox", { name: "Message", exact: true });
  const say = async text => {
    await box.fill(text);
    await box.press("Enter");
    await page.getByRole("button", { name: "Send", exact: true }).waitFor();
  };
  for (const other of OTHERS) {
    fake.script = async function* () {
      yield "An answer.";
    };
    await say(other);
    await page.keyboard.press("Control+Shift+O");
  }
  fake.script = paced;
  await say(QUESTION);
  await sleep(500);
  await page.locator(".thread").evaluate(thread => (thread.scrollTop = 0));
  await show?.(page);
  await sleep(300);
  const path = join(folder, `${name}.png`);
  await page.screenshot({ path });
  execFileSync("optipng", ["-quiet", "-o4", path]);
  await context.close();
}

await picture("page", { viewport: { width: 1280, height: 800 }, colorScheme: "light" }, async page => {
  await page.locator(".to-end").evaluate(button => (button.hidden = true));
});
await picture("page-phone", { viewport: { width: 390, height: 780 }, colorScheme: "dark", isMobile: true, hasTouch: true }, async page => {
  await page.locator(".thread").evaluate(thread => (thread.scrollTop = thread.scrollHeight));
});
await browser.close();
fake.close();
