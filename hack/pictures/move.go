package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/replumb/replumb/internal/reporting/htmlreport"
)

// moveWidth is how wide the picture of a move is.
const moveWidth = 900

//go:embed move.html
var moveTemplate string

// recorded is what a demo's result has of time: Seconds in lab/demo.
type recorded struct {
	Seconds struct {
		Start     int64    `json:"start"`
		MoveBegan int64    `json:"moveBegan"`
		MoveEnded int64    `json:"moveEnded"`
		Replumb   []second `json:"replumb"`
		Control   []second `json:"control"`
	} `json:"seconds"`
}

type second struct {
	Answered int `json:"answered"`
	Lost     int `json:"lost"`
}

// chart is one side: for each second since the start, the percentage of its requests that were answered, and of those that were lost. Both
// sides have one scale by that, and fewer requests do not look like an outage.
type chart struct {
	Title string    `json:"title"`
	X     []int     `json:"x"`
	All   []int     `json:"all"`
	Lost  []float64 `json:"lost"`
}

// movePage is a page with a chart for each side of a demo's result.
func movePage(result []byte) ([]byte, error) {
	var r recorded
	if err := json.Unmarshal(result, &r); err != nil {
		return nil, err
	}
	if len(r.Seconds.Replumb) == 0 || len(r.Seconds.Control) == 0 {
		return nil, errors.New("it has no seconds\nhint: make demo records them")
	}
	t, err := template.New("move.html").Parse(moveTemplate)
	if err != nil {
		return nil, err
	}
	script, style, err := htmlreport.Library()
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	err = t.Execute(&page, map[string]any{
		"Library": template.JS(script), "Style": template.CSS(style), //nolint:gosec // ours, and embedded
		"Charts": []chart{
			chartOf("Services moved by replumb", r.Seconds.Replumb),
			chartOf("Control: a Service that is deleted and created again", r.Seconds.Control),
		},
		"Began": r.Seconds.MoveBegan - r.Seconds.Start, "Ended": r.Seconds.MoveEnded - r.Seconds.Start,
		"Day":   time.Unix(r.Seconds.Start, 0).UTC().Format("2 January 2006"),
		"Width": moveWidth,
	})
	return page.Bytes(), err
}

func chartOf(name string, seconds []second) chart {
	c := chart{}
	all, lost := 0, 0
	for i, s := range seconds {
		sent := s.Answered + s.Lost
		if sent == 0 { // clients end one after the other
			continue
		}
		percent := 100 * float64(s.Lost) / float64(sent)
		c.X, c.All, c.Lost = append(c.X, i), append(c.All, 100), append(c.Lost, percent)
		all, lost = all+sent, lost+s.Lost
	}
	c.Title = fmt.Sprintf("%s: %s requests, %s lost", name, humanize.Comma(int64(all)), humanize.Comma(int64(lost)))
	return c
}
