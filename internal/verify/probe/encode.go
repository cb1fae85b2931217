package probe

import (
	"encoding/base64"
	"encoding/binary"
	"hash/adler32"
	"math"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Parts of encoded histograms (encodeIntoCompressedByteBuffer in
// github.com/HdrHistogram/HdrHistogram), zlib (RFC 1950) and deflate (RFC 1951).
const (
	packedCookie = uint32(hdr.V2CompressedEncodingCookieBase | 0x10)
	countsCookie = uint32(hdr.V2EncodingCookieBase | 0x10)
	zlibHeader   = uint16(0x7801)
	// lastStored begins a block that is stored as it is, and has none after it.
	lastStored = byte(1)
)

// encodeHistogram is compatible with the library's Encode, but stores instead of compressing: a
// compressor takes 800 KB and the time of ten requests to save thirty bytes a window.
func encodeHistogram(h *hdr.Histogram) string {
	counts := appendCounts(nil, h)
	plain := make([]byte, 0, hdr.ENCODING_HEADER_SIZE+len(counts))
	plain = binary.BigEndian.AppendUint32(plain, countsCookie)
	plain = binary.BigEndian.AppendUint32(plain, uint32(len(counts))) //nolint:gosec // at most nine bytes for each of 2,560 counts
	plain = binary.BigEndian.AppendUint32(plain, 0)                   // offset of the first count
	plain = binary.BigEndian.AppendUint32(plain, latencyDigits)
	plain = binary.BigEndian.AppendUint64(plain, 1)
	plain = binary.BigEndian.AppendUint64(plain, uint64(latencyTop))
	plain = binary.BigEndian.AppendUint64(plain, math.Float64bits(1)) // how integers become other numbers
	plain = append(plain, counts...)

	const around = 2 + 1 + 2 + 2 + 4
	size := uint16(len(plain)) //nolint:gosec // as above: a stored block has room for 65,535 bytes
	packed := make([]byte, 0, 8+around+len(plain))
	packed = binary.BigEndian.AppendUint32(packed, packedCookie)
	packed = binary.BigEndian.AppendUint32(packed, uint32(size)+around)
	packed = binary.BigEndian.AppendUint16(packed, zlibHeader)
	packed = append(packed, lastStored)
	packed = binary.LittleEndian.AppendUint16(packed, size)
	packed = binary.LittleEndian.AppendUint16(packed, ^size)
	packed = append(packed, plain...)
	packed = binary.BigEndian.AppendUint32(packed, adler32.Checksum(plain))
	return base64.StdEncoding.EncodeToString(packed)
}

// appendCounts appends up to the last count; negative numbers are runs of zeros.
func appendCounts(to []byte, h *hdr.Histogram) []byte {
	zeros := int64(0)
	for _, n := range h.Export().Counts {
		if n == 0 {
			zeros++
			continue
		}
		if zeros == 1 {
			to = append(to, 0)
		} else if zeros > 1 {
			to = appendZigZag(to, -zeros)
		}
		to, zeros = appendZigZag(to, n), 0
	}
	return to
}

// appendZigZag appends seven bits a byte, the sign last. Numbers of 2^55 and more, with eight bits
// in the ninth byte, do not occur.
func appendZigZag(to []byte, n int64) []byte { return binary.AppendVarint(to, n) }
