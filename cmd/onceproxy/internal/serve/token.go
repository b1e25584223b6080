package serve

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

// tokenVariable may hold the token of the operator's page. There is no flag for it,
// because everybody on a machine can read the command lines of its processes.
const tokenVariable = "ONCEPROXY_ADMIN_TOKEN"

// The length of a token that is given, in bytes.
const (
	minToken = 16
	maxToken = 512
)

// pageToken is what the operator's page asks for: the token of the file, else that of
// the environment, else a new one, of which made tells.
func pageToken(c *config.Config, getenv func(string) (string, bool)) (token string, made bool, err error) {
	from := tokenVariable
	if name := c.AdminTokenFile; name != "" {
		from = "admin_token_file"
		token, err = readToken(name)
		if err != nil {
			return "", false, fmt.Errorf("admin_token_file: %w", err)
		}
	} else if token, made = getenv(tokenVariable); !made {
		return rand.Text(), true, nil
	}
	switch {
	case len(token) < minToken:
		return "", false, fmt.Errorf("%s: a token has at least %d characters", from, minToken)
	case len(token) > maxToken:
		return "", false, fmt.Errorf("%s: a token has at most %d characters", from, maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r < '!' || r > '~' }):
		return "", false, fmt.Errorf("%s: a token has letters, digits and signs of ASCII, without spaces", from)
	}
	return token, false, nil
}

func readToken(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", errors.New("the file is empty; write a token into it")
	}
	return token, nil
}
