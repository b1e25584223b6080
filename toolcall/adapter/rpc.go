package adapter

import (
	"encoding/json"
	"errors"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

// An RPCError is the error of a JSON-RPC 2.0 response (section 5.1 of its specification).
type RPCError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error implements error.
func (e *RPCError) Error() string { return e.Message }

// Codes of RPCErrors, as the specification has them.
const (
	MethodNotFound = -32601
	InvalidParams  = -32602
	InternalError  = -32603
)

// rpcRefusal is an error whose data is an oncehttp problem document.
func rpcRefusal(err error) *RPCError {
	p := oncehttp.RefusalOf(err)
	data, _ := json.Marshal(p) // cannot fail
	return &RPCError{InternalError, p.Title, data}
}

// Judge is what a tool returns whose call ended with err. The RPCError is what the server said; nil
// says that it did not answer, or nobody knows what. A refusal of [Served.Once] is taken at its word.
func (e *RPCError) Judge(err error) error {
	var below *oncehttp.Error
	switch {
	case errors.As(err, &below):
		return err // the Runner knows its kind
	case e == nil:
		return toolcall.Transient(err)
	case e.Code == InvalidParams:
		return &toolcall.Error{Type: toolcall.TypeBadArguments, Details: "the server refuses the parameters", Err: err}
	case e.Code == MethodNotFound: // an earlier attempt may have met another server
		return &toolcall.Error{Type: toolcall.TypePermanent, NotSent: true, Err: err}
	}
	if refused := toolcall.Refused(e.Data, err); refused != nil {
		return refused
	}
	return err
}
