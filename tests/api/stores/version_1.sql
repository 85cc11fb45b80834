-- A database of the schema before migrations (version 1), as SQLite's .dump writes it.
BEGIN TRANSACTION;
CREATE TABLE document (
	sha256 VARCHAR(64) NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (sha256)
);
INSERT INTO "document" VALUES('1b600e351e4b6f13c2a05c5d3f695773330f533e14405575051384e354e4ee9a',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC54202F51A12027314FA91600BBAE1083');
INSERT INTO "document" VALUES('66c0e59d9335fe8ee450b048128ca94f387e9683cb5fa7aa2f57931e7735fa33',X'789CAB564ACA2FCD4B51B2323430D033D0514A4F2C50B202B3B23341C24A6989D9A94A3A4AF94959A9C9259965A97095C5258925A5C54015F9052599B989394045A57999254001A0682D0075F21A8B');
INSERT INTO "document" VALUES('d67fe6d3914bcec5ce22041aec66aa07bd4dd4836e5502dc46fa6b3f4fe83432',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC5420AF242355A118C85428C849CC53AA05003B921329');
INSERT INTO "document" VALUES('b7a8fab04d2e1f6c6138fa4562428e6b92b0cc39d45bb70013187f8d4464e854',X'789C3D8C410E80200C04BF427A3606AFFCA66855040A09C58BF1EF560FDE662793BDC097CE0BB8C9DAD10EB06105F7510CAF861523C1008C9974C94EA6299A9A9055177FD02CE1A4FFA0094A6F9A962A2163D2A87310156AEF07302F21EC');
INSERT INTO "document" VALUES('dbdf151070a74433a4072d1838f60c960cc0c60666ce46f7e5e822267e26e223',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC5420AF243F5FA124333DA344A91600F23E11E9');
INSERT INTO "document" VALUES('d13e3f04848af7fd8f9859471d0f9426585258efcfeb0f8149b81233f2398762',X'789CAB56CACC4B4B4D2CCE4CCACCC92CA954B2AA562ACEC82F2A894FAA2C492D56B232AED551CACECC4B51B2524A4BCC4E55D2512A2E492C2905CAC035E680444BF3324B806240895A00DA371CA7');
INSERT INTO "document" VALUES('35beb80c9f346707f055b0c91d66c6b8959afd418fef3b5ad92c22502315c5d8',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC54202FA9283F3B354FA91600BDF910D8');
INSERT INTO "document" VALUES('9711fbbdf978e52991b7e14c4d0a7dd773fcae2c177cc8d8b3625743e8acba0d',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC54202F2FBF44A13C31AF243545A9160004B7124B');
INSERT INTO "document" VALUES('3fbac873ca35289655b1a5a722e6196e12f958d0971fa0e1ed376ac25c7a2776',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC5420AFA834AF58A916009CD2101F');
INSERT INTO "document" VALUES('aee38d24a3666a3d808280dac3abc877be5ab07b13c02372e67b571d32ea1738',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC5420AFB83C35B540A91600AD50107B');
INSERT INTO "document" VALUES('d79baf121bd9ef5e8a128b827768bfcb6dd20678eea9bcfcfe6470e03e4c87fb',X'789CAB564A4ACD482CCBCC2F2D52B2522A2CCD4CCE56D251CACECC4B0172D312B35381BCBCC4DC5420AF3C31B3A458A91600AD41107F');
CREATE TABLE event (
	job_id VARCHAR(40) NOT NULL, 
	seq INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	type VARCHAR(12) NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (job_id, seq), 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',1,1.79561598959454464911e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',2,1.79561598961767578119e+09,'state','{"state": "running", "attempt": 1}');
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',3,1.79561598961882042885e+09,'incumbent','{"objective": 120.0, "bound": 100.0, "gap": 0.16666666666666666}');
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',4,1.79561598961942148209e+09,'log','{"line": "a line"}');
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',5,1.79561598963446784017e+09,'state','{"state": "succeeded", "cached": false}');
INSERT INTO "event" VALUES('plan_01a2130d9f4a174375f0c2232603',6,1.79561598963470292087e+09,'done','{"state": "succeeded", "status": "optimal", "objective": 100.0, "bound": 100.0, "gap": 0.0, "unit": "us", "error": null}');
INSERT INTO "event" VALUES('plan_01a2130d9f83a19c08f331401e9e',1,1795615989.63573,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9f83a19c08f331401e9e',2,1.79561598964933705332e+09,'state','{"state": "succeeded", "cached": true}');
INSERT INTO "event" VALUES('plan_01a2130d9f83a19c08f331401e9e',3,1.79561598964957547189e+09,'done','{"state": "succeeded", "status": "optimal", "objective": 100.0, "bound": 100.0, "gap": 0.0, "unit": "us", "error": null}');
INSERT INTO "event" VALUES('plan_01a2130d9f92bb2430e3c78fad07',1,1.79561598965295934676e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9f92bb2430e3c78fad07',2,1.79561598965472841264e+09,'state','{"state": "running", "attempt": 1}');
INSERT INTO "event" VALUES('plan_01a2130d9f92bb2430e3c78fad07',3,1.79561598965604734415e+09,'state','{"state": "infeasible", "cached": false}');
INSERT INTO "event" VALUES('plan_01a2130d9f92bb2430e3c78fad07',4,1.79561598965623879431e+09,'done','{"state": "infeasible", "status": "infeasible", "objective": null, "bound": null, "gap": null, "unit": "us", "error": null}');
INSERT INTO "event" VALUES('plan_01a2130d9f9863b1794ed52f3917',1,1.79561598966935443873e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9f9863b1794ed52f3917',2,1.79561598967103648182e+09,'state','{"state": "running", "attempt": 1}');
INSERT INTO "event" VALUES('plan_01a2130d9f9863b1794ed52f3917',3,1.79561598967194437984e+09,'state','{"state": "failed", "cached": false}');
INSERT INTO "event" VALUES('plan_01a2130d9f9863b1794ed52f3917',4,1.7956159896721348762e+09,'done','{"state": "failed", "status": null, "objective": null, "bound": null, "gap": null, "unit": null, "error": {"type": "SolverError", "detail": "the solver broke"}}');
INSERT INTO "event" VALUES('plan_01a2130d9fa8fd4b1c7f648f659c',1,1.79561598968116474146e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9fa8fd4b1c7f648f659c',2,1.79561598968308925626e+09,'state','{"state": "cancelled", "cached": false}');
INSERT INTO "event" VALUES('plan_01a2130d9fa8fd4b1c7f648f659c',3,1.79561598968329048158e+09,'done','{"state": "cancelled", "status": null, "objective": null, "bound": null, "gap": null, "unit": null, "error": null}');
INSERT INTO "event" VALUES('plan_01a2130d9fb3f7882320143128dc',1,1.79561598968422746658e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9fb3f7882320143128dc',2,1.79561598969398880003e+09,'state','{"state": "running", "attempt": 1}');
INSERT INTO "event" VALUES('plan_01a2130d9fb3f7882320143128dc',3,1.79561598969462108614e+09,'progress','{"objective": null, "bound": 90.0, "gap": null}');
INSERT INTO "event" VALUES('plan_01a2130d9fc0af72aa19e51c9f9b',1,1.79561598970533871648e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9fc95fc42af032e5e62e',1,1.79561598970618915556e+09,'state','{"state": "queued"}');
INSERT INTO "event" VALUES('plan_01a2130d9fccfe674342d814bda2',1,1.79561598970864629747e+09,'state','{"state": "queued"}');
CREATE TABLE frontier (
	id VARCHAR(40) NOT NULL, 
	labels JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	idempotency_key VARCHAR(255), 
	request_sha256 VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (idempotency_key)
);
INSERT INTO "frontier" VALUES('frontier_01a2130d9fc0af72aa195cbcd5b6','{"run": "sweep"}',1.79561598969604754448e+09,'the key of a sweep','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff');
CREATE TABLE job (
	id VARCHAR(40) NOT NULL, 
	frontier_id VARCHAR(40), 
	kind VARCHAR(40) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	labels JSON NOT NULL, 
	problem_sha256 VARCHAR(64) NOT NULL, 
	options JSON NOT NULL, 
	asked_gap FLOAT NOT NULL, 
	time_limit_s FLOAT NOT NULL, 
	budget_bytes BIGINT, 
	cache_key VARCHAR(64) NOT NULL, 
	idempotency_key VARCHAR(255), 
	request_sha256 VARCHAR(64) NOT NULL, 
	state VARCHAR(12) NOT NULL, 
	status VARCHAR(12), 
	objective FLOAT, 
	bound FLOAT, 
	gap FLOAT, 
	unit VARCHAR(12), 
	plan_sha256 VARCHAR(64), 
	error JSON, 
	cached BOOLEAN NOT NULL, 
	reusable BOOLEAN NOT NULL, 
	cancel_requested BOOLEAN NOT NULL, 
	attempts INTEGER NOT NULL, 
	lease_owner VARCHAR(64), 
	lease_beats INTEGER, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	finished_at FLOAT, 
	event_seq INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(frontier_id) REFERENCES frontier (id), 
	FOREIGN KEY(problem_sha256) REFERENCES document (sha256), 
	UNIQUE (idempotency_key), 
	FOREIGN KEY(plan_sha256) REFERENCES document (sha256)
);
INSERT INTO "job" VALUES('plan_01a2130d9f4a174375f0c2232603',NULL,'fake','a plan','{"run": "baseline", "who": "zo\u00eb"}','1b600e351e4b6f13c2a05c5d3f695773330f533e14405575051384e354e4ee9a','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'a-plan-key','the key of a plan','6120706c616e6120706c616e6120706c616e6120706c616e6120706c616e6120','succeeded','optimal',100.0,100.0,0.0,'us','66c0e59d9335fe8ee450b048128ca94f387e9683cb5fa7aa2f57931e7735fa33','null',0,1,0,1,NULL,1,1.7956159895796182155e+09,1.79561598960344982146e+09,1.79561598961999034878e+09,6);
INSERT INTO "job" VALUES('plan_01a2130d9f83a19c08f331401e9e',NULL,'fake','the same plan','{}','d67fe6d3914bcec5ce22041aec66aa07bd4dd4836e5502dc46fa6b3f4fe83432','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'a-plan-key',NULL,'7468652073616d6520706c616e7468652073616d6520706c616e746865207361','succeeded','optimal',100.0,100.0,0.0,'us','b7a8fab04d2e1f6c6138fa4562428e6b92b0cc39d45bb70013187f8d4464e854','null',1,1,0,0,NULL,NULL,1.79561598963540482521e+09,NULL,1.79561598963649201397e+09,3);
INSERT INTO "job" VALUES('plan_01a2130d9f92bb2430e3c78fad07',NULL,'fake','too tight','{}','dbdf151070a74433a4072d1838f60c960cc0c60666ce46f7e5e822267e26e223','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'too-tight-key',NULL,'746f6f207469676874746f6f207469676874746f6f207469676874746f6f2074','infeasible','infeasible',NULL,NULL,NULL,'us','d13e3f04848af7fd8f9859471d0f9426585258efcfeb0f8149b81233f2398762','null',0,1,0,1,NULL,1,1.79561598965051794052e+09,1.79561598965408349042e+09,1.79561598965536308291e+09,4);
INSERT INTO "job" VALUES('plan_01a2130d9f9863b1794ed52f3917',NULL,'fake','broken','{}','35beb80c9f346707f055b0c91d66c6b8959afd418fef3b5ad92c22502315c5d8','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'broken-key',NULL,'62726f6b656e62726f6b656e62726f6b656e62726f6b656e62726f6b656e6272','failed',NULL,NULL,NULL,NULL,NULL,NULL,'{"type": "SolverError", "detail": "the solver broke"}',0,0,0,1,NULL,1,1.79561598965675783164e+09,1.7956159896704130173e+09,1.79561598967164206498e+09,4);
INSERT INTO "job" VALUES('plan_01a2130d9fa8fd4b1c7f648f659c',NULL,'fake','not wanted','{}','9711fbbdf978e52991b7e14c4d0a7dd773fcae2c177cc8d8b3625743e8acba0d','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'not-wanted-key',NULL,'6e6f742077616e7465646e6f742077616e7465646e6f742077616e7465646e6f','cancelled',NULL,NULL,NULL,NULL,NULL,NULL,'null',0,0,0,0,NULL,NULL,1.79561598967267107966e+09,NULL,1795615989.68271,3);
INSERT INTO "job" VALUES('plan_01a2130d9fb3f7882320143128dc',NULL,'fake','runs','{}','3fbac873ca35289655b1a5a722e6196e12f958d0971fa0e1ed376ac25c7a2776','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'runs-key',NULL,'72756e7372756e7372756e7372756e7372756e7372756e7372756e7372756e73','running',NULL,NULL,90.0,NULL,NULL,NULL,NULL,0,0,0,1,'host-1-aaaa',2,1.79561598968392872812e+09,1.79561598969326615335e+09,NULL,3);
INSERT INTO "job" VALUES('plan_01a2130d9fc0af72aa19e51c9f9b','frontier_01a2130d9fc0af72aa195cbcd5b6','fake','sweep','{"run": "sweep"}','aee38d24a3666a3d808280dac3abc877be5ab07b13c02372e67b571d32ea1738','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,1073741824,'sweep-1073741824',NULL,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,1.79561598969659137726e+09,NULL,NULL,1);
INSERT INTO "job" VALUES('plan_01a2130d9fc95fc42af032e5e62e','frontier_01a2130d9fc0af72aa195cbcd5b6','fake','sweep','{"run": "sweep"}','aee38d24a3666a3d808280dac3abc877be5ab07b13c02372e67b571d32ea1738','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,8589934592,'sweep-8589934592',NULL,'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,1.79561598970581674577e+09,NULL,NULL,1);
INSERT INTO "job" VALUES('plan_01a2130d9fccfe674342d814bda2',NULL,'fake','waits','{"run": "baseline"}','d79baf121bd9ef5e8a128b827768bfcb6dd20678eea9bcfcfe6470e03e4c87fb','{"gap": 0.02, "time_limit_s": 60.0}',0.02,60.0,NULL,'waits-key',NULL,'7761697473776169747377616974737761697473776169747377616974737761','queued',NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,NULL,1.79561598970823431018e+09,NULL,NULL,1);
CREATE TABLE label (
	job_id VARCHAR(40) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	value VARCHAR(256) NOT NULL, 
	PRIMARY KEY (job_id, name), 
	FOREIGN KEY(job_id) REFERENCES job (id) ON DELETE CASCADE
);
INSERT INTO "label" VALUES('plan_01a2130d9f4a174375f0c2232603','run','baseline');
INSERT INTO "label" VALUES('plan_01a2130d9f4a174375f0c2232603','who','zoë');
INSERT INTO "label" VALUES('plan_01a2130d9fc0af72aa19e51c9f9b','run','sweep');
INSERT INTO "label" VALUES('plan_01a2130d9fc95fc42af032e5e62e','run','sweep');
INSERT INTO "label" VALUES('plan_01a2130d9fccfe674342d814bda2','run','baseline');
CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE tally (
	metric VARCHAR(40) NOT NULL, 
	bucket VARCHAR(12) NOT NULL, 
	upper FLOAT NOT NULL, 
	value FLOAT NOT NULL, 
	PRIMARY KEY (metric, bucket)
);
INSERT INTO "tally" VALUES('solve_seconds','0.1',0.1,2.0);
INSERT INTO "tally" VALUES('solve_seconds','0.5',0.5,2.0);
INSERT INTO "tally" VALUES('solve_seconds','1',1.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','2',2.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','5',5.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','10',10.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','30',30.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','60',60.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','120',120.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','300',300.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','900',900.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','3600',3600.0,2.0);
INSERT INTO "tally" VALUES('solve_seconds','+Inf',1.0e+300,2.0);
INSERT INTO "tally" VALUES('gap_at_stop','0',0.0,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.001',0.001,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.005',0.005,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.01',0.01,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.02',0.02,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.05',0.05,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.1',0.1,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.2',0.2,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','0.5',0.5,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','1',1.0,1.0);
INSERT INTO "tally" VALUES('gap_at_stop','+Inf',1.0e+300,1.0);
INSERT INTO "tally" VALUES('solve_seconds','sum',-1.0,1.78201198577880859375e-02);
INSERT INTO "tally" VALUES('gap_at_stop','sum',-1.0,0.0);
INSERT INTO "tally" VALUES('cache_hits','count',-1.0,1.0);
CREATE TABLE worker (
	id VARCHAR(64) NOT NULL, 
	seen_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "worker" VALUES('host-1-aaaa',1.79561598971773385999e+09);
CREATE INDEX job_by_state ON job (state, id, cache_key);
CREATE INDEX ix_job_problem_sha256 ON job (problem_sha256);
CREATE INDEX ix_job_plan_sha256 ON job (plan_sha256);
CREATE INDEX job_by_answer ON job (cache_key, reusable, id);
CREATE INDEX ix_job_frontier_id ON job (frontier_id);
CREATE INDEX ix_job_lease_owner ON job (lease_owner);
CREATE INDEX label_by_value ON label (name, value);
COMMIT;
