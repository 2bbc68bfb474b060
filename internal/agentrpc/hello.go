package agentrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"gantry/fleet"

	"google.golang.org/protobuf/proto"
)

// Seal gives an inventory its digest.
func Seal(inv *Inventory) *Inventory {
	inv.Digest = ""
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(inv)
	if err != nil {
		return inv // without one it is told whole each time
	}
	sum := sha256.Sum256(data)
	inv.Digest = hex.EncodeToString(sum[:16])
	return inv
}

// inBrief is a hello as it is said first. One whose inventory has no digest is said whole.
func inBrief(h *Hello) *Hello {
	if h.GetInventory().GetDigest() == "" {
		return h
	}
	return &Hello{
		MachineId: h.GetMachineId(), BootId: h.GetBootId(), Generation: h.GetGeneration(), Hardware: h.GetHardware(), Lineage: h.GetLineage(), Place: h.GetPlace(),
		HoldsSet: h.GetHoldsSet(), Run: h.GetRun(), Attempt: h.GetAttempt(),
		Inventory: &Inventory{Digest: h.GetInventory().GetDigest()}, Brief: true,
	}
}

// Greet says hello on a stream, in brief and, when it is asked for, whole, and returns the welcome. heard is called with each
// sign of life that comes before.
func Greet(ctx context.Context, stream Link_SessionClient, hello *Hello, heard func()) (*Welcome, error) {
	// Why a stream does not take it is what Recv tells.
	_ = stream.Send(&Up{Kind: &Up_Hello{Hello: inBrief(hello)}})
	for asked := false; ; {
		msg, err := stream.Recv()
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		switch {
		case msg.GetWelcome() != nil:
			return msg.GetWelcome(), nil
		case msg.GetBeat() != nil:
			heard()
		case msg.GetWhole() != nil && !asked:
			asked = true
			heard()
			_ = stream.Send(&Up{Kind: &Up_Hello{Hello: hello}})
		default:
			return nil, errors.New("the scheduler's first message is not a welcome")
		}
	}
}

// EncodeResources encodes what a host offers, or a pod needs.
func EncodeResources(r fleet.Resources) *Resources {
	return &Resources{MilliCpu: r.MilliCPU, MemoryMb: r.MemoryMB, DiskGb: r.DiskGB}
}

// Nanoseconds encodes a time; 0 stands for one that is not known.
func Nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
