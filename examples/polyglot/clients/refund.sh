#!/bin/sh
# Refunds an order with curl, and tries again until there is an answer.
# Usage: refund.sh URL KEY ORDER
for try in 1 2 3 4 5 6; do
	if curl --silent --show-error --max-time 5 \
		--header "Idempotency-Key: $2" --header "Content-Type: application/json" \
		--data "{\"order\":\"$3\",\"amount\":100}" "$1"; then
		exit 0
	fi
	sleep 0.1
done
exit 1
