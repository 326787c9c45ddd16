package state

import (
	"context"
	"fmt"
	"testing"
	"time"

	"iop/execution"
)

const benchRuns = 200_000

// fill writes runs of a hundred keys on ten Nodes over sixty days.
func fill(b *testing.B, s *Store) time.Time {
	b.Helper()
	at := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	var records []UsageRecord
	for i := range benchRuns {
		r := used(0, at.Add(time.Duration(i)*60*24*time.Hour/benchRuns))
		r.Run = execution.NewRunID()
		r.Key, r.Principal = KeyID(fmt.Sprint("key000", i%100)), fmt.Sprint("team-", i%20)
		r.Node, r.Model = execution.NodeID(fmt.Sprint("gpu-", i%10)), fmt.Sprint("model-", i%7)
		records = append(records, r)
	}
	addAll(b, s, records...)
	return at
}

// BenchmarkAddUsage writes as the meter does: a thousand runs at a time, with a timeout, 2,000 a second. Look at cpu-us/run.
func BenchmarkAddUsage(b *testing.B) {
	s := openURL(b, fileURL(b))
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	at := time.Now()
	n := 0
	b.ReportAllocs()
	before := processCPU(b)
	for b.Loop() {
		records := make([]UsageRecord, 1000)
		for i := range records {
			records[i] = used(n, at.Add(time.Duration(n)*500*time.Microsecond))
			records[i].Run = execution.NewRunID()
			n++
		}
		if err := s.AddUsage(ctx, records); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processCPU(b)-before).Microseconds())/float64(n), "cpu-us/run")
}

func BenchmarkUsage(b *testing.B) {
	s := openURL(b, fileURL(b))
	at := fill(b, s)
	for name, q := range map[string]UsageQuery{
		"all":                {},
		"by-day-principal":   {By: []Dimension{ByDay, ByPrincipal}},
		"by-key-model-month": {By: []Dimension{ByKey, ByModel, ByMonth}},
		"one-key":            {Key: "key0007", By: []Dimension{ByDay}},
		"one-day":            {From: at.AddDate(0, 0, 30), To: at.AddDate(0, 0, 31), By: []Dimension{ByModel}},
	} {
		b.Run(name, func(b *testing.B) {
			before := processCPU(b)
			for b.Loop() {
				if _, err := s.UsageSummary(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processCPU(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
	b.Run("export", func(b *testing.B) {
		for b.Loop() {
			if err := s.EachUsage(b.Context(), UsageQuery{}, func(UsageRecord) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("month-tokens", func(b *testing.B) {
		for b.Loop() {
			monthTokens(b, s, "key0007", at)
		}
	})
}
