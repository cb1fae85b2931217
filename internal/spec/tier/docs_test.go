package tier

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"
)

// TestTheDocumentedRequestIsTheOneThatIsSent compares the request of docs/hooks.md with what is
// sent, field by field.
func TestTheDocumentedRequestIsTheOneThatIsSent(t *testing.T) {
	page, err := os.ReadFile("../../../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(page, -1) {
		if !bytes.Contains(block[1], []byte(`"kind": "TierLookupRequest"`)) {
			continue
		}
		found++
		var request Request
		if err := json.Unmarshal(block[1], &request); err != nil {
			t.Fatal(err)
		}
		sent, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		var written bytes.Buffer
		if err := json.Compact(&written, block[1]); err != nil {
			t.Fatal(err)
		}
		if written.String() != string(sent) {
			t.Errorf("documented %s\nbut sent   %s", written.String(), sent)
		}
	}
	if found != 1 {
		t.Errorf("%d such requests in the page", found)
	}
}
