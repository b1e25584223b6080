// What makes a page hard to read, as a list of complaints.
(() => {
	const complaints = [];
	const visible = (e) => {
		const box = e.getBoundingClientRect();
		return e.checkVisibility({ visibilityProperty: true }) && box.width > 1 && box.right > 0;
	};
	const name = (e) => `<${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""} class="${e.className}"> ${(e.innerText || e.value || "").slice(0, 30)}`;

	const parse = (text) => {
		const n = text.match(/[\d.]+/g).map(Number);
		return { rgb: n.slice(0, 3), alpha: n.length > 3 ? n[3] : 1 };
	};
	const light = ([r, g, b]) => {
		const part = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
		return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
	};
	const behind = (e) => {
		for (; e; e = e.parentElement) {
			const ground = parse(getComputedStyle(e).backgroundColor);
			if (ground.alpha === 1) return ground.rgb;
			if (ground.alpha !== 0) complaints.push("half transparent: " + name(e));
		}
		return [255, 255, 255];
	};
	const contrast = (e, style, what) => {
		const a = light(parse(style.color).rgb), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) complaints.push(`contrast ${ratio.toFixed(2)} of ${what} ${name(e)}`);
	};

	let texts = 0;
	for (const e of document.body.querySelectorAll("*")) {
		if (!visible(e)) continue;
		const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
		const field = e.matches("input, select, textarea");
		if (own || field) {
			texts++;
			contrast(e, getComputedStyle(e), "text");
			if (parseFloat(getComputedStyle(e).fontSize) < 13) complaints.push("small text: " + name(e));
		}
		if (e.placeholder) contrast(e, getComputedStyle(e, "::placeholder"), "placeholder");
		if (field && e.type !== "hidden" && !(e.labels && e.labels.length)) complaints.push("no label: " + name(e));
		if (e.matches("button, select, .button, input:not([type=radio])") && e.getBoundingClientRect().height < 40) complaints.push("too small to touch: " + name(e));
		if (e.matches("th") && !e.scope) complaints.push("no scope: " + name(e));
		if (e.matches("[aria-labelledby], [aria-describedby]")) {
			for (const id of ((e.getAttribute("aria-labelledby") || "") + " " + (e.getAttribute("aria-describedby") || "")).trim().split(/\s+/)) {
				if (!document.getElementById(id)) complaints.push(`no #${id} for ` + name(e));
			}
		}
	}
	if (texts < 5) complaints.push("there is hardly any text; is this the page?");
	const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
	for (const id of ids) if (ids.filter((i) => i === id).length > 1) complaints.push("twice: #" + id);
	if (document.querySelectorAll("h1").length !== 1) complaints.push("not one h1");
	if (document.querySelectorAll("main").length !== 1) complaints.push("not one main");
	let level = 1;
	for (const h of document.querySelectorAll("h1, h2, h3, h4")) {
		if (+h.tagName[1] > level + 1) complaints.push("a level of headings is left out before " + name(h));
		level = +h.tagName[1];
	}
	if (!document.documentElement.lang) complaints.push("no language");
	if (document.scripts.length) complaints.push("a script");
	if (document.scrollingElement.scrollWidth > innerWidth) complaints.push(`wider than the screen: ${document.scrollingElement.scrollWidth} of ${innerWidth}`);
	return complaints;
})()
