package dataplane

import (
	"encoding/binary"
	"math/bits"
)

// sum adds up b as 16-bit words of the internet checksum (RFC 1071), 8 bytes at a time, without folding. b begins at an even place.
func sum(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		p := b[:64]
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[24:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[32:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[40:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[48:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(p[56:]), c)
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), c)
		b = b[8:]
	}
	if len(b) > 0 {
		var t [8]byte
		copy(t[:], b)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(t[:]), c)
	}
	s, c = bits.Add64(s, 0, c)
	return s + c
}

func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s) //nolint:gosec // it is folded
}

// pseudo sums the pseudo header of TCP without its length. ip is a header of IPv4.
func pseudo(ip []byte) uint64 { return uint64(fold(sum(ip[12:20], protoTCP))) }
