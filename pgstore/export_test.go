package pgstore

// Statements returns the text of those that a claim and a completion run.
func (s *Store) Statements() (claim, complete string) { return s.sql.claim, s.sql.complete }

// RowID is what a key's row is found by.
var RowID = rowID

// PackToken is what stands for a token in its row.
var PackToken = packToken

// QuoteTable quotes a table's name, and ViewName is the name of its view.
func QuoteTable(name string) string {
	q, err := quoteTable(name)
	if err != nil {
		panic(err)
	}
	return q
}

func ViewName(name string) string { return viewName(QuoteTable(name)) }
