package oncehttp_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/oncehttp/oncehttp"
)

func TestARefusalIsTheSameOverEveryProtocol(t *testing.T) {
	for _, c := range []struct {
		err     error
		kind    string
		retry   bool
		outcome string
	}{
		{oncehttp.ErrNoKey, "malformed-key", false, "none"},
		{oncehttp.ErrBadKey, "malformed-key", false, "none"},
		{oncehttp.ErrKeyReused, "key-reused", false, "unknown"},
		{oncehttp.ErrPrincipalChanged, "principal-changed", false, "unknown"},
		{oncehttp.ErrInProgress, "in-progress", true, "unknown"},
		{oncehttp.ErrOutcomeUnknown, "outcome-unknown", false, "unknown"},
		{oncehttp.ErrResponseGone, "response-gone", false, "unknown"},
		{oncehttp.ErrFull, "store-full", true, "unknown"},
		{oncehttp.ErrStoreUnavailable, "store-unavailable", true, "unknown"},
	} {
		b, err := json.Marshal(oncehttp.RefusalOf(fmt.Errorf("wrapped: %w", c.err)))
		var got struct {
			Type    string
			Retry   bool `json:"retry_same_key"`
			Outcome string
		}
		if err != nil || json.Unmarshal(b, &got) != nil || got.Type != "urn:oncehttp:"+c.kind || got.Retry != c.retry || got.Outcome != c.outcome {
			t.Errorf("%v: got %s, %v", c.err, b, err)
		}
	}
}
