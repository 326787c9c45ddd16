package admin_test

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"iop/gateway/admin"
	"iop/state"
)

// TestKeysByName: wherever a key's id can be given its name can be, and wherever its id is shown its name is.
func TestKeysByName(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	d.addUsage()
	k2 := string(d.edge.k2)
	for _, name := range []string{"k2", k2} {
		var key admin.Key
		if d.must(&key, "GET", v1+"/keys/"+name, ""); key.ID != d.edge.k2 || key.Name != "k2" {
			t.Errorf("%s is %+v", name, key)
		}
		if d.must(&key, "PATCH", v1+"/keys/"+name, `{"rpm":9}`); key.ID != d.edge.k2 {
			t.Errorf("changed %+v", key)
		}
		var runs struct{ Data []admin.Run }
		if d.must(&runs, "GET", v1+"/runs"+query("key", name), ""); len(runs.Data) != 1 || runs.Data[0].Key != d.edge.k2 || runs.Data[0].KeyName == "" {
			t.Errorf("the runs of %s: %+v", name, runs.Data)
		}
		var sums admin.Usage
		if d.must(&sums, "GET", v1+"/usage"+query("key", name, "by", "key"), ""); len(sums.Data) != 1 || sums.Data[0].Key != k2 || sums.Data[0].KeyName != "k2" {
			t.Errorf("the usage of %s: %+v", name, sums.Data)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(d.ask("GET", v1+"/usage/records?format=csv&key=k2", "").body)).ReadAll()
	if err != nil || len(rows) != 2 || rows[1][1] != k2 || rows[1][len(rows[1])-1] != "k2" {
		t.Errorf("the export has %q, %v", rows, err)
	}
	if body := d.ask("GET", v1+"/usage/records?key=k1", "").body; !strings.Contains(body, `"key_name":"k1"`) {
		t.Errorf("the export has %s", body)
	}
	var queues struct{ Data []admin.Queue }
	d.must(&queues, "GET", v1+"/queue", "")
	for i, want := range []string{"team-a", "key:k2"} {
		if got := queues.Data[0].Principals[i]; got.Name != want {
			t.Errorf("waiting is %+v, want %s", got, want)
		}
	}
	var revoked admin.KeyRevocation
	if d.must(&revoked, "POST", v1+"/keys/k2/revoke", ""); revoked.ID != d.edge.k2 {
		t.Errorf("revoked %+v", revoked)
	}
}

// TestNamesInPaths: whatever a name consists of, it can stand in a path.
func TestNamesInPaths(t *testing.T) {
	d := newDesk(t)
	for _, name := range []string{"a/b", "a/../b", "a//b", "//", "/..", "...", "%2e%2e", "a?b#c", "a b", "größe 大", "revoke", "k/revoke", "a%"} {
		key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		path := d.server.URL + v1 + "/keys/" + url.PathEscape(name)
		for method, path := range map[string]string{"GET": path, "POST": path + "/revoke"} {
			r, err := http.NewRequestWithContext(t.Context(), method, path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+d.token)
			resp, err := d.server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var got admin.Key
			if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || got.ID != key.ID {
				t.Errorf("%s %q: %d, %+v, %v", method, name, resp.StatusCode, got, err)
			}
			resp.Body.Close()
		}
	}
	for _, name := range []string{".", "..", "/"} {
		d.refused(400, "invalid_request", "name", "POST", v1+"/keys", `{"name":"`+name+`"}`)
	}
}

// TestPrincipalByName: a key without an owner is a principal by its name as well as by its id.
func TestPrincipalByName(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	record := usageRecord("run_1")
	record.Key, record.Principal = d.edge.k1, "key:"+string(d.edge.k1)
	if err := d.store.AddUsage(t.Context(), []state.UsageRecord{record}); err != nil {
		t.Fatal(err)
	}
	for _, principal := range []string{"key:k1", record.Principal} {
		var sums admin.Usage
		d.must(&sums, "GET", v1+"/usage"+query("principal", principal, "by", "principal"), "")
		if len(sums.Data) != 1 || sums.Data[0].Principal != record.Principal || sums.Data[0].PrincipalName != "key:k1" {
			t.Errorf("%s: %+v", principal, sums.Data)
		}
	}
	d.refused(404, "not_found", "principal", "GET", v1+"/usage?principal=key:nobody", "")
}

// TestPrincipalsAsPrinted: each principal is printed so that a filter takes it, and finds what it was printed for, also where a
// name has been used again.
func TestPrincipalsAsPrinted(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	add := func(id state.KeyID) {
		t.Helper()
		record := usageRecord("run_" + string(id))
		record.Key, record.Principal = id, "key:"+string(id)
		if err := d.store.AddUsage(t.Context(), []state.UsageRecord{record}); err != nil {
			t.Fatal(err)
		}
	}
	var ids []state.KeyID
	for _, live := range []bool{false, false, true} { // two former keys and a live one have the name
		key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "ci"})
		if err != nil {
			t.Fatal(err)
		}
		if ids = append(ids, key.ID); !live {
			if err := d.store.RevokeKey(t.Context(), key.ID, "test"); err != nil {
				t.Fatal(err)
			}
		}
		add(key.ID)
	}
	add(d.edge.k1)
	var sums admin.Usage
	d.must(&sums, "GET", v1+"/usage?by=key,principal", "")
	want := map[string]string{
		string(ids[0]): "key:ci (" + string(ids[0]) + ")", string(ids[1]): "key:ci (" + string(ids[1]) + ")", string(ids[2]): "key:ci", string(d.edge.k1): "key:k1",
	}
	if len(sums.Data) != len(want) {
		t.Fatalf("%d rows", len(sums.Data))
	}
	for _, row := range sums.Data {
		if row.PrincipalName != want[row.Key] {
			t.Errorf("%s is printed as %q", row.Key, row.PrincipalName)
		}
		for _, filter := range []string{query("principal", row.PrincipalName), query("key", strings.TrimPrefix(row.PrincipalName, "key:"))} {
			var one admin.Usage
			if d.must(&one, "GET", v1+"/usage"+filter+"&by=key", ""); len(one.Data) != 1 || one.Data[0].Key != row.Key {
				t.Errorf("%s finds %+v", filter, one.Data)
			}
		}
	}
	d.refused(404, "not_found", "key", "GET", v1+"/usage"+query("key", "k1 ("+string(ids[0])+")"), "")
}

func TestNamesThatFindNoKey(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	for _, path := range []string{"/runs", "/runs?follow", "/usage", "/usage/records"} {
		mark := map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")]
		d.refused(404, "not_found", "key", "GET", v1+path+mark+"key=nobody", "")
	}
	taken := d.refused(409, "name_taken", "name", "POST", v1+"/keys", `{"name":"k1"}`)
	if !strings.Contains(taken.Message, string(d.edge.k1)) {
		t.Errorf("the key that has the name is not named: %s", taken.Message)
	}
	d.refused(409, "name_taken", "name", "PATCH", v1+"/keys/k2", `{"name":"k1"}`)
	d.refused(400, "invalid_request", "name", "POST", v1+"/keys", `{"name":"`+string(d.edge.k1)+`"}`)
	for range 2 { // the name of keys of which none is live
		d.must(nil, "POST", v1+"/keys/k1/revoke", "")
		if _, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "k1"}); err != nil {
			t.Fatal(err)
		}
	}
	d.must(nil, "POST", v1+"/keys/k1/revoke", "")
	d.refused(409, "ambiguous_name", "id", "GET", v1+"/keys/k1", "")
	d.refused(409, "ambiguous_name", "key", "GET", v1+"/usage?key=k1", "")
}
