"""Refunds an order with urllib, and tries again until there is an answer.

Usage: refund.py URL KEY ORDER
"""

import json
import sys
import time
import urllib.request

url, key, order = sys.argv[1:]
for attempt in range(6):
    request = urllib.request.Request(
        url,
        data=json.dumps({"order": order, "amount": 100}).encode(),
        headers={"Idempotency-Key": key, "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            print(response.read().decode())
            sys.exit(0)
    except OSError as error:
        print(error, file=sys.stderr)
        time.sleep(0.1)
sys.exit(1)
