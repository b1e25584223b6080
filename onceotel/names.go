package onceotel

// The names of attributes. Those of HTTP are from the semantic conventions for HTTP spans
// and metrics, which are stable. Those that begin with gen_ai. are from the conventions for
// generative AI, which are not yet: they stand here as this package's own, so that they
// change when it says so. What the conventions have no name for begins with oncehttp.
const (
	attrMethod  = "http.request.method"
	attrResend  = "http.request.resend_count" // only above 0
	attrStatus  = "http.response.status_code"
	attrAddress = "server.address"
	attrPort    = "server.port"
	attrURL     = "url.full" // without user, query and fragment
	attrError   = "error.type"

	attrOperation = "gen_ai.operation.name"
	attrTool      = "gen_ai.tool.name"
	attrToolType  = "gen_ai.tool.type"
	attrToolCall  = "gen_ai.tool.call.id"

	attrCertainty = "oncehttp.certainty"     // not sent, answered, unknown
	attrStop      = "oncehttp.stop"          // why there was no further attempt
	attrSends     = "oncehttp.connections"   // of one attempt, where more than one
	attrOutcome   = "oncehttp.outcome"       // how a keyed request ended, or a tool call's effect
	attrRefusal   = "oncehttp.refusal"       // the last part of a Refusal's Type
	attrRecord    = "oncehttp.record"        // the beginning of a record's key; spans only
	attrRecorded  = "oncehttp.recorded"      // repeats get this answer
	attrHolder    = "oncehttp.holder"        // runs of a key, where more than one
	attrToolState = "oncehttp.tool.status"   // ok, degraded, failed
	attrReplayed  = "oncehttp.tool.replayed" // the call was not run: it had been
	attrTries     = "oncehttp.tool.attempts" // runs of the tool's function
	attrTurn      = "oncehttp.tool.turn"     // spans only
	opExecuteTool = "execute_tool"           // gen_ai.operation.name
	typeFunction  = "function"               // gen_ai.tool.type
)

// The names of metrics.
const (
	metricAttempt  = "http.client.request.duration" // of the conventions; one for each attempt, as they say
	metricRequests = "oncehttp.client.requests"
	metricResends  = "oncehttp.client.resends"
	metricAnswer   = "oncehttp.server.request.duration"
	metricTool     = "oncehttp.tool.call.duration"
)
