package toolcall

// A reason is what a message has to say beyond type and outcome.
type reason uint8

const (
	plainReason   reason = iota
	replayed             // the call had been made before
	latched              // an earlier call of the tool is unknown
	toolBudget           // only this tool's budget is used up
	noTool               // the model made the tool up
	noLedger             // the store does not answer
	stopped              // the caller left
	unverified           // Verify says no
	tooLarge             // the result was cut
	notShown             // the result is no JSON, or no longer kept
	misconfigured        // the runtime is wired wrongly
)

// message is the text for a result. These texts are instructions to a model: they
// say what is known, what to do, and what not to do. They never change for the same
// case, so that a provider's prompt cache holds, and never quote anybody.
func message(e Effect, s Status, t ErrorType, o Outcome, why reason) (string, Next) {
	switch why {
	case latched:
		return "This call was not run. An earlier call of this tool in this turn has an unknown outcome: it may already have taken effect. Do not call the tool with other arguments, and do not try a smaller or different request to test it. Find out what happened to the earlier call, or tell the user that its outcome is unknown.", NextVerify
	case toolBudget:
		return "This call was not run: the limit for this tool in this turn is reached. Do not call this tool again. Go on with what you have, and tell the user what is missing.", NextInformUser
	case noTool:
		return "This call was not run: there is no tool of this name. Use one of the tools you were given.", NextFixArguments
	case stopped:
		switch o {
		case OutcomeUnknown:
			return "The work was stopped while this call was running. It may or may not have taken effect. Do not make the call again with other arguments, and do not say that it failed or succeeded.", NextSummariseAndStop
		case OutcomeApplied:
			return "The call took effect, and the work was stopped after that. Do not make the call again.", NextSummariseAndStop
		}
		return "The work was stopped, and this call did not happen. Do not make it again unless you are asked to.", NextSummariseAndStop
	case noLedger:
		if o == OutcomeUnknown {
			return "This call was not started now, because the record of earlier calls cannot be read. An earlier try of the same call may have taken effect. Do not make it with other arguments. Tell the user that it could not be done now.", NextInformUser
		}
		return "This call was not started, because it could not be recorded. Nothing happened. Tell the user that it cannot be done now. Do not try another tool to get around it.", NextInformUser
	case unverified:
		return "The earlier try of this call was checked: it did not take effect. It is not run again in this turn. Tell the user, and ask whether it should be done.", NextAskUser
	case misconfigured:
		return "This call was not run, because the tool is not set up correctly. Nothing happened. Do not call it again. Tell the user that it is not available.", NextInformUser
	}

	switch t {
	case "":
		return success(e, why)

	case TypeDegraded:
		return degraded(e, o, why)

	case TypeBadArguments:
		if o == OutcomeUnknown {
			return "An earlier try of this call may have taken effect, and the last one was refused because of its arguments. Do not call the tool with other arguments. Find out what happened to the earlier try, or tell the user that its outcome is unknown.", NextVerify
		}
		return "The call was refused because its arguments are wrong. Nothing happened. Correct the arguments as the details and the tool's description say, and call it again. If you do not know the right value, ask the user; do not guess.", NextFixArguments

	case TypeBudgetExceeded:
		switch o {
		case OutcomeUnknown:
			return "The limits of this turn are reached while this call was running. It may or may not have taken effect. Make no more tool calls. Sum up what is done, and say that the outcome of this call is unknown.", NextSummariseAndStop
		}
		return "The limits of this turn are reached, and this call did not happen. Make no more tool calls. Sum up what is done and what is not.", NextSummariseAndStop

	case TypeTransient:
		switch {
		case e == Read:
			return "The tool could not be reached or did not answer in time, and was tried as often as allowed. Nothing was changed. Do not invent a result. Go on without it, or tell the user that it is not available now.", NextInformUser
		case o == OutcomeNone:
			return "The tool cannot be reached now. The call was not carried out and nothing happened. Tell the user that it could not be done now. Do not try other arguments or another tool to get around it.", NextInformUser
		}
		return unknown(e)

	default:
		switch {
		case e == Read:
			return "The tool failed, and trying again will not help. Nothing was changed. Do not invent a result. Go on without it, or tell the user.", NextInformUser
		case o == OutcomeNone:
			return "The call was refused, and trying again will not help. Nothing happened. Do not make the same call again. Tell the user what could not be done.", NextInformUser
		}
		return unknown(e)
	}
}

func success(e Effect, why reason) (string, Next) {
	switch {
	case e == Read:
		return "The call succeeded. Use the result.", NextUseResult
	case why == replayed:
		return "The same call had already been made in this turn and had taken effect, so it was not run again. This is its first result. Use it, and do not change the arguments to make it run again.", NextUseResult
	}
	return "The call succeeded and took effect once. Use the result. Do not make the same call again.", NextUseResult
}

func degraded(e Effect, o Outcome, why reason) (string, Next) {
	again := " Do not make the same call again to get the rest."
	if e == Read {
		again = " Say so where the missing part matters."
	}
	switch {
	case o == OutcomeUnknown:
		return unknown(e)
	case why == tooLarge && e == Read:
		return "The call succeeded, but its result is too large and was cut. Use what there is, or ask for less. Do not invent the rest." + again, NextUsePartial
	case why == tooLarge:
		return "The call succeeded and took effect once. Its result is too large and was cut. Use what there is." + again, NextUsePartial
	case why == notShown && e == Read:
		return "The call succeeded, but its result cannot be shown. Do not invent it. Go on without it, or tell the user.", NextInformUser
	case why == notShown:
		return "The call succeeded and took effect once, but its result cannot be shown. Do not invent it." + again, NextUsePartial
	case e == Read:
		return "The call succeeded in part. Use what there is, and do not invent the rest." + again, NextUsePartial
	}
	return "The call took effect, but its result is not complete. Use what there is, and do not invent the rest." + again, NextUsePartial
}

// unknown is for work that may have happened.
func unknown(e Effect) (string, Next) {
	switch e {
	case Keyed, Idempotent:
		return "The outcome of this call is unknown: it may already have taken effect. Do not call the tool with other arguments, and do not try a smaller or different request to test it. Only exactly the same call is safe. Otherwise find out what happened, and do not say that it failed or succeeded.", NextVerify
	case Read:
		return "The outcome of this call is unknown. Do not invent a result.", NextInformUser
	}
	return "The outcome of this call is unknown: it may already have taken effect. Do not call the tool again with other arguments, and do not try a smaller or different request to test it. Find out what happened in another way, or ask the user to check. Do not say that it failed or succeeded.", NextVerify
}
