package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// An Error says which setting is wrong, where it stands, and what to do.
type Error struct {
	File  string // "": not from a file
	Line  int    // 0: not known
	Field string // as in routes[0].scope.jwt.jwks
	Msg   string
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// maxFile is the largest file of settings that is read.
const maxFile = 1 << 20

// A file is what a Config was read from.
type file struct {
	name string
	body ast.Node
}

// Load reads a YAML file over what c has. Unknown fields, values of the wrong type
// and keys that stand there twice are errors that name the field and the line. It does
// not judge the values; Check does.
func (c *Config) Load(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return &Error{Field: "config", Msg: err.Error()}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return &Error{File: name, Msg: err.Error()}
	case len(b) > maxFile:
		return &Error{File: name, Msg: "the file is larger than " + Size(maxFile).String()}
	}
	return c.parse(name, b)
}

func (c *Config) parse(name string, b []byte) (err error) {
	defer func() {
		if v := recover(); v != nil { // the parser has met input that it does not expect
			err = &Error{File: name, Msg: "this is not YAML that can be read"}
		}
	}()
	doc, err := parser.ParseBytes(b, 0)
	if err != nil {
		return explain(name, nil, err)
	}
	c.file = &file{name: name}
	for _, d := range doc.Docs {
		if d.Body == nil {
			continue
		}
		if c.file.body != nil {
			return &Error{File: name, Line: lineOf(d.Body), Msg: "a second document begins here; one file is one configuration"}
		}
		c.file.body = d.Body
		if err := yaml.NodeToValue(d.Body, c, yaml.Strict()); err != nil {
			return explain(name, d.Body, err)
		}
	}
	return nil
}

// unmarshalText has a scalar read by f, and says where it stands if it cannot be.
func unmarshalText(n ast.Node, f func([]byte) error) error {
	text := n.GetToken().Value
	if _, ok := n.(ast.ScalarNode); !ok {
		text = n.Type().String()
	}
	if err := f([]byte(text)); err != nil {
		return &Error{Line: lineOf(n), Field: fieldOf(n), Msg: err.Error()}
	}
	return nil
}

func lineOf(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

func fieldOf(n ast.Node) string { return strings.TrimPrefix(n.GetPath(), "$.") }

// explain words an error of the YAML library, without the lines around it: there may
// be secrets in them.
func explain(name string, body ast.Node, err error) error {
	var own *Error
	if errors.As(err, &own) {
		own.File = name
		return own
	}
	out := &Error{File: name, Msg: err.Error()}
	var located yaml.Error
	if !errors.As(err, &located) {
		return out
	}
	out.Msg = plainly(located.GetMessage())
	token := located.GetToken()
	if token == nil || token.Position == nil {
		return out
	}
	out.Line = token.Position.Line
	if body != nil {
		ast.Walk(finder{offset: token.Position.Offset, field: &out.Field}, body)
	}
	return out
}

var (
	wrongType = regexp.MustCompile(`^cannot unmarshal (.+) into Go .* of type (\S+)$`)
	wrongNode = regexp.MustCompile(`^(\S+) was used where (\S+) is expected$`)
	unknown   = regexp.MustCompile(`^unknown field "(.*)"$`)
)

// plainly replaces the words of Go by those of the file.
func plainly(msg string) string {
	if m := unknown.FindStringSubmatch(msg); m != nil {
		return "there is no such setting"
	}
	m := wrongType.FindStringSubmatch(msg)
	if m == nil {
		m = wrongNode.FindStringSubmatch(msg)
	}
	if m == nil {
		return msg
	}
	return fmt.Sprintf("%s stands here, but %s is wanted", kind(m[1]), kind(m[2]))
}

func kind(name string) string {
	switch name {
	case "int", "uint64", "int64":
		return "a whole number"
	case "bool", "boolean":
		return "true or false"
	case "string":
		return "text"
	case "sequence", "slice", "[]interface {}":
		return "a list"
	case "mapping", "map", "struct":
		return "a group of settings"
	case "null":
		return "nothing"
	}
	return "a value of type " + name
}

// A finder notes the field at an offset of the file.
type finder struct {
	offset int
	field  *string
}

// Visit implements ast.Visitor.
func (f finder) Visit(n ast.Node) ast.Visitor {
	if t := n.GetToken(); t != nil && t.Position != nil && t.Position.Offset == f.offset && n.GetPath() != "$" {
		*f.field = fieldOf(n)
	}
	return f
}

// wrong makes an Error for a field, with the line on which it or what holds it stands.
func (c *Config) wrong(field, format string, args ...any) error {
	e := &Error{Field: field, Msg: fmt.Sprintf(format, args...)}
	if c.file == nil || c.file.body == nil {
		return e
	}
	e.File = c.file.name
	for path := field; path != ""; {
		if p, err := yaml.PathString("$." + path); err == nil {
			if n, err := p.FilterNode(c.file.body); err == nil && n != nil {
				e.Line = lineOf(n)
				return e
			}
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			break
		}
		path = path[:i]
	}
	return e
}
