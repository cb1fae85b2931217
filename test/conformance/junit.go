package conformance

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Outcome is what became of a test.
type Outcome string

// What can become of a test. One that was not chosen has none.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped" // by itself, as it found that the cluster is not one for it
)

// Result is one run of one test.
type Result struct {
	Name    string
	Outcome Outcome
	Seconds float64
	Message string // why it failed, or skipped itself
}

// report is the part of a JUnit report by Ginkgo that we read.
type report struct {
	Suites []struct {
		Cases []reportCase `xml:"testcase"`
	} `xml:"testsuite"`
}

type reportCase struct {
	Name    string  `xml:"name,attr"`
	Status  string  `xml:"status,attr"`
	Seconds float64 `xml:"time,attr"`
	Skipped *struct {
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
	Failure *struct {
		Text string `xml:",chardata"`
	} `xml:"failure"`
	Error *struct {
		Text string `xml:",chardata"`
	} `xml:"error"`
}

// What Ginkgo writes of tests that were not among those to run, and of those that are not to run yet.
const (
	notChosen = "skipped"
	pending   = "pending"
)

// ReadReport returns the results of the tests in a JUnit report by Ginkgo, by name. It fails if what is done before or after all tests has
// failed, and if no test ran.
func ReadReport(r io.Reader) ([]Result, error) {
	var all report
	if err := xml.NewDecoder(r).Decode(&all); err != nil {
		return nil, fmt.Errorf("junit report: %w", err)
	}
	var results []Result
	for _, suite := range all.Suites {
		for _, c := range suite.Cases {
			result, ran := c.result()
			name, isTest := strings.CutPrefix(c.Name, "[It] ")
			switch {
			case isTest && ran:
				result.Name = name
				results = append(results, result)
			case !isTest && result.Outcome == Failed:
				return nil, fmt.Errorf("%s failed: %s", c.Name, result.Message)
			}
		}
	}
	if len(results) == 0 {
		return nil, errors.New("no test ran")
	}
	slices.SortFunc(results, func(a, b Result) int { return strings.Compare(a.Name, b.Name) })
	return results, nil
}

// result is what the report says of a test, and whether it ran.
func (c reportCase) result() (Result, bool) {
	r := Result{Outcome: Failed, Seconds: c.Seconds}
	switch {
	case c.Skipped != nil:
		r.Outcome, r.Message = Skipped, strings.TrimPrefix(c.Skipped.Message, notChosen+" - ")
		return r, c.Skipped.Message != notChosen && c.Skipped.Message != pending
	case c.Failure != nil:
		r.Message = firstLines(c.Failure.Text)
	case c.Error != nil:
		r.Message = firstLines(c.Error.Text)
	case c.Status == string(Passed):
		r.Outcome = Passed
	default:
		r.Message = "its status is " + c.Status
	}
	return r, true
}

// firstLines are as much of a message as says what went wrong.
func firstLines(text string) string {
	lines := strings.SplitN(strings.TrimSpace(text), "\n", 6)
	return strings.Join(lines[:min(5, len(lines))], "\n")
}
