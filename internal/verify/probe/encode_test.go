package probe

import (
	"encoding/binary"
	"testing"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// FuzzEncodeHistogram holds what is written against what the library reads, and against what the
// library writes.
func FuzzEncodeHistogram(f *testing.F) {
	values := func(all ...uint32) (data []byte) {
		for _, v := range all {
			data = binary.BigEndian.AppendUint32(data, v)
		}
		return data
	}
	f.Add(values(1), uint32(1))
	f.Add(values(1, 2, 4), uint32(63))
	f.Add(values(1, 3, 250, 251, 100_000, 59_999_999), uint32(64))
	f.Add(values(700, 710, 60_000_000), uint32(1<<20))
	f.Fuzz(func(t *testing.T, data []byte, times uint32) {
		h := newHistogram()
		for ; len(data) >= 4; data = data[4:] {
			v := int64(binary.BigEndian.Uint32(data))%latencyTop + 1
			if err := h.RecordValues(v, int64(times)+1); err != nil {
				t.Fatal(err)
			}
		}
		if h.TotalCount() == 0 {
			return
		}
		library, err := h.Encode(hdr.V2CompressedEncodingCookieBase)
		if err != nil {
			t.Fatal(err)
		}
		for _, encoded := range []string{encodeHistogram(h), string(library)} {
			got, err := decodeLatency(encoded)
			if err != nil {
				t.Fatalf("%s: %v", encoded, err)
			}
			if !got.Equals(h) {
				t.Fatalf("%s: has become another histogram", encoded)
			}
		}
	})
}

func BenchmarkEncodeHistogram(b *testing.B) {
	h := newHistogram()
	for i := range int64(100) {
		_ = h.RecordValue(700 + i*i)
	}
	b.ReportAllocs()
	for b.Loop() {
		encodeHistogram(h)
	}
}
