// Refunds an order with fetch, and tries again until there is an answer.
// Usage: refund.mjs URL KEY ORDER
const [url, key, order] = process.argv.slice(2);

for (let attempt = 0; attempt < 6; attempt++) {
  try {
    const response = await fetch(url, {
      method: "POST",
      headers: { "Idempotency-Key": key, "Content-Type": "application/json" },
      body: JSON.stringify({ order, amount: 100 }),
      signal: AbortSignal.timeout(5000),
    });
    console.log(await response.text());
    process.exit(response.ok ? 0 : 1);
  } catch (error) {
    console.error(String(error));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
process.exit(1);
