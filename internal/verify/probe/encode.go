package probe

import (
	"encoding/base64"
	"encoding/binary"
	"hash/adler32"
	"math"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// Parts of an encoded histogram (github.com/HdrHistogram/HdrHistogram, encodeIntoCompressedByteBuffer), of zlib (RFC 1950) and of
// deflate (RFC 1951).
const (
	packedCookie = uint32(hdr.V2CompressedEncodingCookieBase | 0x10)
	countsCookie = uint32(hdr.V2EncodingCookieBase | 0x10)
	zlibHeader   = uint16(0x7801)
	// lastStored begins a block that is stored as it is, and has none after it.
	lastStored = byte(1)
)

// encodeHistogram writes what the library's Encode does, and what every reader of HdrHistograms understands, without really compressing
// it: a compressor takes 800 KB and more time than ten requests to save some thirty bytes, for each probe and each second.
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

// appendCounts appends the counts up to the last that is not 0. A number below 0 stands for that many counts of 0.
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

// appendZigZag appends a number in seven bits a byte, the sign last. Numbers of 2^55 and more, of which the format has the ninth byte
// hold eight bits, are not counted to here.
func appendZigZag(to []byte, n int64) []byte { return binary.AppendVarint(to, n) }
