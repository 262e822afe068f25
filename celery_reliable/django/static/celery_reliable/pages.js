"use strict";
// Counts what is chosen, and goes on with a batch by itself. Every page works without it.
{
    const letters = document.getElementById("reliable-letters");
    const all = document.getElementById("reliable-all");
    if (letters && all) {
        const boxes = [...letters.querySelectorAll("input.action-select")];
        const show = () => {
            const chosen = boxes.filter((box) => box.checked).length;
            const counter = document.getElementById("reliable-chosen");
            if (counter) counter.textContent = `${chosen} of ${boxes.length} selected`;
            all.checked = chosen === boxes.length;
            for (const box of boxes) box.closest("tr").classList.toggle("selected", box.checked);
        };
        all.addEventListener("change", () => {
            for (const box of boxes) box.checked = all.checked;
            show();
        });
        letters.addEventListener("change", show);
        show();
    }

    const batch = document.getElementById("reliable-batch");
    let stopped = false;

    const goOn = async () => {
        batch.querySelector(".reliable-go-on").hidden = true;
        const stop = batch.querySelector(".reliable-stop");
        stop.hidden = false;
        stop.addEventListener("click", () => { stopped = true; stop.disabled = true; });
        const form = batch.querySelector("form");
        const answer = await fetch(form.action, {method: "POST", body: new FormData(form), credentials: "same-origin"});
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const next = page.getElementById("reliable-batch");
        if (!next) throw new Error(`the site answered ${answer.status}`);
        batch.replaceChildren(...next.childNodes);
        return next.hasAttribute("data-goes-on");
    };

    const run = async () => {
        try {
            while (!stopped && await goOn());
        } catch (error) {
            const note = document.createElement("p");
            note.className = "errornote";
            note.textContent = `Stopped: ${error.message}. What was done stays done; go on, or reload the list.`;
            batch.prepend(note);
            const button = batch.querySelector(".reliable-go-on");
            if (button) button.hidden = false;
        }
    };

    if (batch && batch.hasAttribute("data-goes-on")) run();
}
